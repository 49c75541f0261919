//! Typed configurations become running parts: outputs first, inputs last; everything that fails to open is reported
//! at once and nothing is left running.

use std::sync::Arc;

use super::lifecycle::{Running, RunningOutput};
use super::plan::{ActionPlan, ChainPlan, Identity, InputPlan, OutputKind, OutputPlan, Plan, RulePlan};
use crate::buffer;
use crate::config::{BuildError, SystemConfig};
use crate::input::{Input, InputContext};
use crate::net::budget::MemoryBudget;
use crate::net::listener;
use crate::output::buffered::BufferedSink;
use crate::output::direct::DirectSink;
use crate::output::out_copy::{CopySink, Store};
use crate::output::runner::{Runner, RunnerConfig};
use crate::output::{Output, OutputContext};
use crate::router::{Entrance, ErrorStream, FilterStation, Labels, Router, Rule, RuleAction, Sink};
use crate::telemetry::{Category, Overview, PluginView, Reading, Sample, SampleKind};

/// The label whose unmatched tags are silent.
const FLUENT_LOG_LABEL: &str = "@FLUENT_LOG";
/// The label that gets rejected records.
const ERROR_LABEL: &str = "@ERROR";

impl Plan {
    /// Opens everything and starts it. Runs inside the tokio runtime.
    pub async fn start(self, overview: Arc<Overview>) -> Result<Running, Vec<BuildError>> {
        let labels = Labels::new(self.chains.iter().filter_map(|chain| chain.label.as_deref()));
        let mut builder = Builder {
            labels: &labels,
            errors: Arc::default(),
            overview: Arc::clone(&overview),
            memory: MemoryBudget::new(self.system.memory_limit_bytes()),
            system: Arc::new(self.system),
            outputs: Vec::new(),
            views: Vec::new(),
            faults: Vec::new(),
        };
        if let Some(door) = labels.door(ERROR_LABEL) {
            builder.errors.connect(door);
        }
        for chain in self.chains {
            builder.chain(chain).await;
        }
        overview.register_samples(process_samples(builder.memory.clone()));
        let mut inputs = Vec::new();
        for input in self.inputs {
            inputs.extend(builder.input(input));
        }
        let Builder { outputs, mut views, faults, .. } = builder;
        if !faults.is_empty() {
            // Nothing was started: dropping a buffer's last handle ends its thread.
            return Err(faults);
        }
        let outputs = outputs.into_iter().map(|output| output.start(&mut views)).collect();
        for view in views {
            overview.register(view);
        }
        for input in &mut inputs {
            input.start();
        }
        Ok(Running::new(inputs, outputs))
    }
}

/// An output that is built but delivers nothing yet: the configuration may still turn out to have faults.
struct Unstarted {
    id: String,
    output: Arc<dyn Output>,
    /// Place of its view.
    view: usize,
    back: Option<Back>,
}

struct Back {
    buffer: buffer::BufferHandle,
    runner: RunnerConfig,
    flush_at_shutdown: bool,
}

impl Unstarted {
    fn start(self, views: &mut [PluginView]) -> RunningOutput {
        let Self { id, output, view, back } = self;
        Arc::clone(&output).start();
        let Some(Back { buffer, runner, flush_at_shutdown }) = back else {
            return RunningOutput::direct(id, output);
        };
        let metrics = views.get(view).map(|view| Arc::clone(&view.metrics)).unwrap_or_default();
        let runner = Runner::start(id.clone(), Arc::clone(&output), buffer.clone(), metrics, runner);
        if let Some(view) = views.get_mut(view) {
            view.retry = Some(Arc::new(runner.retry_reading()));
        }
        RunningOutput::buffered(id, output, buffer, runner, flush_at_shutdown)
    }
}

struct Builder<'a> {
    labels: &'a Labels,
    errors: Arc<ErrorStream>,
    overview: Arc<Overview>,
    system: Arc<SystemConfig>,
    memory: MemoryBudget,
    outputs: Vec<Unstarted>,
    views: Vec<PluginView>,
    faults: Vec<BuildError>,
}

impl Builder<'_> {
    async fn chain(&mut self, chain: ChainPlan) {
        let mut rules = Vec::new();
        for rule in chain.rules {
            rules.extend(self.rule(rule, chain.label.as_deref()).await);
        }
        let name = chain.label.as_deref().unwrap_or(crate::router::ROOT);
        let router = Router::new(rules, Arc::clone(&self.errors), name != FLUENT_LOG_LABEL);
        self.labels.connect(name, Arc::new(router));
    }

    async fn rule(&mut self, rule: RulePlan, label: Option<&str>) -> Option<Rule> {
        let pattern = rule.patterns.to_string();
        match rule.action {
            ActionPlan::Filter(identity, filter) => {
                log_adding("filter", &identity.type_name, Some(&pattern), label);
                let view = view(&identity, Category::Filter, label);
                let metrics = Arc::clone(&view.metrics);
                self.views.push(view);
                let station = Arc::new(FilterStation { filter, metrics });
                Some(Rule { patterns: rule.patterns, action: RuleAction::Filter(station) })
            }
            ActionPlan::Output(output) => {
                log_adding("match", &output.identity.type_name, Some(&pattern), label);
                let first = self.views.len();
                let sink = self.output(output, label).await?;
                if label.is_none()
                    && let Some(view) = self.views.get_mut(first)
                {
                    let patterns = Arc::clone(&rule.patterns);
                    view.matches = Some(Arc::new(move |tag| patterns.matches(tag)));
                }
                Some(Rule { patterns: rule.patterns, action: RuleAction::Match(sink) })
            }
        }
    }

    /// Builds an output; its view stands before those of its stores.
    async fn output(&mut self, output: OutputPlan, label: Option<&str>) -> Option<Arc<dyn Sink>> {
        let OutputPlan { identity, kind } = output;
        let mut view = view(&identity, Category::Output, label);
        match kind {
            OutputKind::Relabel { label: target } => {
                self.views.push(view);
                self.door(&target, &identity.place).map(|door| door as Arc<dyn Sink>)
            }
            OutputKind::Copy { stores } => {
                view.is_output = false;
                let metrics = Arc::clone(&view.metrics);
                self.views.push(view);
                let mut built = Vec::new();
                for store in stores {
                    let sink = Box::pin(self.output(store.output, label)).await?;
                    built.push(Store {
                        sink,
                        ignore_error: store.ignore_error,
                        ignore_if_prev_success: store.ignore_if_prev_success,
                    });
                }
                Some(Arc::new(CopySink::new(built, metrics)))
            }
            OutputKind::Plain { config, buffer } => self.plain(identity, config, buffer, view).await,
        }
    }

    async fn plain(
        &mut self,
        identity: Identity,
        config: Box<dyn crate::output::OutputConfig>,
        settings: Option<Box<crate::output::buffer_section::BufferSettings>>,
        mut view: PluginView,
    ) -> Option<Arc<dyn Sink>> {
        let metrics = Arc::clone(&view.metrics);
        let context = OutputContext {
            plugin_id: identity.id.clone(),
            metrics: Arc::clone(&metrics),
            system: Arc::clone(&self.system),
        };
        let built = match config.build(context) {
            Ok(output) => Some(output),
            Err(error) => {
                self.fail(&identity, &error.0);
                None
            }
        };
        // Without its output nobody knows what the buffer's entries hold.
        let output = built?;
        let tag_in_entries = output.wants_tag_in_entries();
        let buffer = match &settings {
            None => None,
            Some(settings) => {
                let mut buffer = settings.buffer.clone();
                if tag_in_entries {
                    buffer.entry_form = buffer::EntryForm::TaggedEvents;
                }
                Some(self.open_buffer(&identity, buffer).await?)
            }
        };
        let fields = Arc::clone(&output);
        view.fields = Some(Arc::new(move || fields.monitor_fields()));
        let samples = Arc::clone(&output);
        view.samples = Some(Arc::new(move || samples.samples()));
        let mut unstarted =
            Unstarted { id: identity.id, output: Arc::clone(&output), view: self.views.len(), back: None };
        let sink: Arc<dyn Sink> = match (settings, buffer) {
            (Some(settings), Some(buffer)) => {
                let stats = buffer.clone();
                view.buffer = Some(Arc::new(move || stats.stats()));
                let mut runner = settings.runner;
                runner.flush_thread_count *= self.system.workers.max(1) as usize;
                let flush_at_shutdown = settings.flush_at_shutdown;
                unstarted.back = Some(Back { buffer: buffer.clone(), runner, flush_at_shutdown });
                let splitter = settings.splitter;
                Arc::new(BufferedSink { buffer, splitter, tag_in_entries, metrics: Arc::clone(&metrics) })
            }
            _ => Arc::new(DirectSink { output, metrics: Arc::clone(&metrics) }),
        };
        self.views.push(view);
        self.outputs.push(unstarted);
        Some(sink)
    }

    async fn open_buffer(
        &mut self,
        identity: &Identity,
        config: buffer::BufferConfig,
    ) -> Option<buffer::BufferHandle> {
        // Recovery reads files: not on a runtime thread.
        let opened = tokio::task::spawn_blocking(move || buffer::open(config)).await;
        let reason = match opened {
            Ok(Ok((handle, _report))) => return Some(handle),
            Ok(Err(error)) => error.to_string(),
            Err(error) => format!("opening the buffer failed: {error}"),
        };
        self.fail(identity, &reason);
        None
    }

    fn input(&mut self, input: InputPlan) -> Option<Box<dyn Input>> {
        let InputPlan { identity, label, config } = input;
        log_adding("source", &identity.type_name, None, None);
        let door = self.door(label.as_deref().unwrap_or(crate::router::ROOT), &identity.place)?;
        let mut view = view(&identity, Category::Input, None);
        let context = InputContext {
            plugin_id: identity.id.clone(),
            entrance: Entrance::new(door),
            metrics: Arc::clone(&view.metrics),
            overview: Arc::clone(&self.overview),
            system: Arc::clone(&self.system),
            memory: self.memory.clone(),
        };
        let built = config.build(context).map_err(|error| self.fail(&identity, &error.0)).ok();
        view.samples = built.as_ref().and_then(|input| input.samples());
        self.views.push(view);
        built
    }

    fn door(&mut self, label: &str, place: &str) -> Option<Arc<crate::router::LabelDoor>> {
        let door = self.labels.door(label);
        if door.is_none() {
            self.faults.push(BuildError(format!("{place}: {label} label not found")));
        }
        door
    }

    fn fail(&mut self, identity: &Identity, text: &str) {
        self.faults
            .push(BuildError(format!("{}: {} {}: {text}", identity.place, identity.type_name, identity.id)));
    }
}

/// Figures that belong to no plugin.
fn process_samples(memory: MemoryBudget) -> Reading<Vec<Sample>> {
    let sample =
        |name, help, kind, value: u64| Sample { name, help, kind, labels: Vec::new(), value: value as f64 };
    Arc::new(move || {
        vec![
            sample(
                "tributary_memory_used_bytes",
                "Bytes of events in transit.",
                SampleKind::Gauge,
                memory.used_bytes(),
            ),
            sample(
                "tributary_memory_limit_bytes",
                "Bytes of events that may be in transit (memory_limit).",
                SampleKind::Gauge,
                memory.limit_bytes(),
            ),
            sample(
                "tributary_refused_connections_total",
                "Connections reset for want of a file descriptor.",
                SampleKind::Counter,
                listener::refused_connections(),
            ),
        ]
    })
}

fn view(identity: &Identity, category: Category, label: Option<&str>) -> PluginView {
    if let Some(level) = identity.log_level {
        crate::telemetry::log::set_plugin_level(&identity.id, level.into());
    }
    let mut view = PluginView::new(identity.id.clone(), category, identity.type_name.clone());
    view.label = label.map(str::to_owned);
    view.config = identity.shown.clone();
    view
}

/// Fluentd's start-up lines; operators look for them.
fn log_adding(what: &str, type_name: &str, pattern: Option<&str>, label: Option<&str>) {
    let place = label.map(|label| format!(" in {label}")).unwrap_or_default();
    match pattern {
        Some(pattern) => tracing::info!(
            target: crate::telemetry::log::SUPERVISOR,
            pattern = pattern,
            r#type = type_name,
            "adding {what}{place}"
        ),
        None => {
            tracing::info!(target: crate::telemetry::log::SUPERVISOR, r#type = type_name, "adding {what}")
        }
    }
}
