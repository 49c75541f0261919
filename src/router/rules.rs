//! Ordered rules of one label, and the cached way of each tag through them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, join_all};

use super::Arrival;
use super::error_stream::ErrorStream;
use super::pattern::TagPatterns;
use super::sink::{Answers, EmitError, Sink};
use super::unmatched::Unmatched;
use crate::event::Tag;
use crate::filter::{Filter, RejectedEvent};
use crate::telemetry::PluginMetrics;

/// Ways kept per router; Fluentd's `EventRouter` keeps as many. When full, all are forgotten: tags that are in use
/// come back at once, and nothing grows with the number of tags ever seen.
const CACHED_TAGS_MAX: usize = 1024;

/// A filter with its counters.
pub struct FilterStation {
    /// The filter.
    pub filter: Box<dyn Filter>,
    /// Its counters.
    pub metrics: Arc<PluginMetrics>,
}

/// What a rule does with a stream that matches.
pub enum RuleAction {
    /// `<filter>`: the stream goes on through it.
    Filter(Arc<FilterStation>),
    /// `<match>`: the stream ends here.
    Match(Arc<dyn Sink>),
}

/// One `<filter>` or `<match>` section.
pub struct Rule {
    /// Its argument.
    pub patterns: Arc<TagPatterns>,
    /// What it does.
    pub action: RuleAction,
}

/// The way of one tag.
struct Route {
    filters: Vec<Arc<FilterStation>>,
    /// `None`: no `<match>` takes the tag.
    sink: Option<Arc<dyn Sink>>,
}

/// The rules of the top level or of one label, in file order.
pub struct Router {
    rules: Vec<Rule>,
    errors: Arc<ErrorStream>,
    routes: Mutex<HashMap<Tag, Arc<Route>>>,
    unmatched: Unmatched,
    /// False inside `<label @FLUENT_LOG>`, where unmatched tags are silent.
    warn_unmatched: bool,
}

impl Router {
    /// A router over rules in file order.
    pub fn new(rules: Vec<Rule>, errors: Arc<ErrorStream>, warn_unmatched: bool) -> Self {
        Self { rules, errors, routes: Mutex::default(), unmatched: Unmatched::default(), warn_unmatched }
    }

    fn route(&self, tag: &Tag) -> Arc<Route> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = routes.get(tag) {
            return Arc::clone(route);
        }
        let route = Arc::new(self.find_route(tag));
        if routes.len() >= CACHED_TAGS_MAX {
            routes.clear();
        }
        routes.insert(tag.detached(), Arc::clone(&route));
        route
    }

    #[cfg(test)]
    pub(super) fn cached_tags(&self) -> usize {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn find_route(&self, tag: &Tag) -> Route {
        let mut filters = Vec::new();
        for rule in &self.rules {
            if !rule.patterns.matches(tag.as_bytes()) {
                continue;
            }
            match &rule.action {
                RuleAction::Filter(station) => filters.push(Arc::clone(station)),
                RuleAction::Match(sink) => return Route { filters, sink: Some(Arc::clone(sink)) },
            }
        }
        // Fluentd's filters see unmatched streams too, but their result is dropped: skipping them changes nothing.
        Route { filters: Vec::new(), sink: None }
    }

    fn is_full(&self) -> bool {
        let mut sinks = self.rules.iter().filter_map(|rule| match &rule.action {
            RuleAction::Match(sink) => Some(sink),
            RuleAction::Filter(_) => None,
        });
        let mut any = false;
        let all_full = sinks.all(|sink| {
            any = true;
            sink.is_full()
        });
        any && all_full
    }

    /// Sorts a batch by destination: filtered arrivals with the place of their answer.
    fn dispatch(&self, batch: Vec<Arrival>) -> Dispatch {
        let mut dispatch = Dispatch { answers: batch.len(), ..Dispatch::default() };
        let mut last: Option<(Tag, Arc<Route>)> = None;
        for (place, arrival) in batch.into_iter().enumerate() {
            let route = match &last {
                Some((tag, route)) if *tag == arrival.stream.tag => Arc::clone(route),
                _ => {
                    let route = self.route(&arrival.stream.tag);
                    last = Some((arrival.stream.tag.clone(), Arc::clone(&route)));
                    route
                }
            };
            let Some(sink) = &route.sink else {
                if self.warn_unmatched {
                    self.unmatched.record(&arrival.stream.tag);
                }
                continue;
            };
            dispatch.add(place, arrival, &route.filters, sink);
        }
        dispatch
    }
}

#[derive(Default)]
struct Dispatch {
    answers: usize,
    groups: Vec<Group>,
    rejected: Vec<RejectedEvent>,
    /// The most labels that one of the arrivals has passed.
    labels_passed: u8,
    /// Places of arrivals that had rejected records: confirmed only when `@ERROR` has taken those.
    rejecting: Vec<usize>,
}

struct Group {
    sink: Arc<dyn Sink>,
    places: Vec<usize>,
    arrivals: Vec<Arrival>,
}

impl Dispatch {
    fn add(&mut self, place: usize, arrival: Arrival, filters: &[Arc<FilterStation>], sink: &Arc<dyn Sink>) {
        let Arrival { mut stream, sender_chunk, labels_passed } = arrival;
        let rejected_before = self.rejected.len();
        self.labels_passed = self.labels_passed.max(labels_passed);
        for station in filters {
            station.metrics.emit_records.fetch_add(stream.count as u64, Ordering::Relaxed);
            stream = station.filter.filter(stream, &mut self.rejected);
        }
        if self.rejected.len() > rejected_before {
            self.rejecting.push(place);
        }
        if stream.count == 0 {
            return;
        }
        let arrival = Arrival { stream, sender_chunk, labels_passed };
        match self.groups.iter_mut().find(|group| Arc::ptr_eq(&group.sink, sink)) {
            Some(group) => {
                group.places.push(place);
                group.arrivals.push(arrival);
            }
            None => self.groups.push(Group {
                sink: Arc::clone(sink),
                places: vec![place],
                arrivals: vec![arrival],
            }),
        }
    }

    /// The common case: everything goes to one sink and every arrival is still there.
    fn single(&mut self) -> Option<Group> {
        let whole = self.groups.len() == 1
            && self.groups[0].arrivals.len() == self.answers
            && self.rejected.is_empty();
        if whole { self.groups.pop() } else { None }
    }
}

impl Sink for Router {
    fn emit(&self, batch: Vec<Arrival>) -> BoxFuture<'static, Answers> {
        let mut dispatch = self.dispatch(batch);
        if let Some(group) = dispatch.single() {
            return group.sink.emit(group.arrivals);
        }
        let rejecting = std::mem::take(&mut dispatch.rejecting);
        let rejected = std::mem::take(&mut dispatch.rejected);
        let errors =
            if rejected.is_empty() { None } else { self.errors.send(rejected, dispatch.labels_passed) };
        let count = dispatch.answers;
        let (places, pending): (Vec<_>, Vec<_>) =
            dispatch.groups.into_iter().map(|group| (group.places, group.sink.emit(group.arrivals))).unzip();
        Box::pin(async move {
            let mut answers: Answers = vec![Ok(()); count];
            for (places, results) in places.into_iter().zip(join_all(pending).await) {
                for (place, result) in places.into_iter().zip(results) {
                    answers[place] = result;
                }
            }
            if let Some(errors) = errors
                && let Some(Err(error)) = errors.await.into_iter().find(Result::is_err)
            {
                refuse(&mut answers, &rejecting, &error);
            }
            answers
        })
    }

    fn is_full(&self) -> bool {
        Router::is_full(self)
    }
}

fn refuse(answers: &mut Answers, places: &[usize], error: &EmitError) {
    for &place in places {
        if answers[place].is_ok() {
            answers[place] = Err(error.clone());
        }
    }
}
