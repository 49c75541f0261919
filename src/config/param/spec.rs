//! Questions that a declaration answers: names, rules, help text.

use super::{NameRule, ParamSpec, RuleKind, SectionSpec, SubsectionSpec};

impl SectionSpec {
    /// The parameters in order.
    pub fn params(&self) -> impl Iterator<Item = &'static ParamSpec> + use<> {
        self.params.iter().copied().flatten()
    }

    /// The sub-sections in order.
    pub fn sections(&self) -> impl Iterator<Item = &'static SubsectionSpec> + use<> {
        self.sections.iter().copied().flatten()
    }

    /// What else is known about names: aliases, unbuilt ones and so on.
    pub fn rules(&self) -> impl Iterator<Item = &'static NameRule> + use<> {
        self.rules.iter().copied().flatten()
    }

    /// What is known about a parameter that is not a field under this name.
    pub fn param_rule(&self, name: &str) -> Option<RuleKind> {
        self.rules()
            .find(|rule| rule.name == name && rule.kind != RuleKind::Foreign(true))
            .map(|rule| rule.kind)
    }

    /// What is known about a section that is not a field.
    pub fn section_rule(&self, name: &str) -> Option<RuleKind> {
        let is_name = |rule: &NameRule| match rule.kind {
            RuleKind::Foreign(true) => rule.name.trim_matches(['<', '>']) == name,
            _ => rule.name.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) == Some(name),
        };
        self.rules().find(|rule| is_name(rule)).map(|rule| rule.kind)
    }

    pub(super) fn aliases<'a>(&self, field: &'a str) -> impl Iterator<Item = &'static str> + use<'a> {
        let is_alias = move |rule: &&NameRule| matches!(rule.kind, RuleKind::Alias(of) if of == field);
        self.rules().filter(is_alias).map(|rule| rule.name)
    }

    /// The parameter with this name, under its own name or an alias.
    pub fn param(&self, name: &str) -> Option<&'static ParamSpec> {
        let field = match self.param_rule(name) {
            Some(RuleKind::Alias(field)) => Some(field),
            _ => None,
        };
        self.params().find(|param| param.name == name || Some(param.field) == field)
    }

    /// The sub-section with this name.
    pub fn section(&self, name: &str) -> Option<&'static SubsectionSpec> {
        self.sections().find(|section| section.name == name)
    }

    /// Every parameter name that may be written, for "did you mean".
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let ruled = self.rules().map(|rule| rule.name).filter(|name| !name.starts_with('<'));
        self.params().map(|param| param.name).chain(ruled)
    }

    /// Help and docs: a markdown table of the parameters, then each sub-section under its own heading.
    pub fn markdown(&self, title: &str) -> String {
        let mut text = format!("### {title}\n\n");
        if !self.doc.is_empty() {
            text.push_str(&format!("{}\n\n", join_doc(self.doc)));
        }
        if self.free_form {
            text.push_str("Takes any parameter.\n\n");
        }
        if self.argument.is_some() || !self.params.is_empty() {
            text.push_str("| parameter | type | default | meaning |\n| --- | --- | --- | --- |\n");
            let argument = self.argument.iter().map(|spec| ("(argument)", spec));
            for (name, spec) in argument.chain(self.params().map(|spec| (spec.name, spec))) {
                text.push_str(&spec.markdown_row(name));
            }
            text.push('\n');
        }
        for section in self.sections() {
            let count = match (section.required, section.multi) {
                (true, _) => "exactly one",
                (false, true) => "any number",
                (false, false) => "at most one",
            };
            let doc = join_doc(section.doc);
            let heading = format!("{title} > `<{}>`", section.name);
            text.push_str(&section.spec.markdown(&heading).replacen(
                "\n\n",
                &format!("\n\n{doc} ({count})\n\n"),
                1,
            ));
        }
        text
    }
}

impl ParamSpec {
    fn markdown_row(&self, name: &str) -> String {
        let choices =
            if self.choices.is_empty() { String::new() } else { format!(": {}", self.choices.join(", ")) };
        let default = match (self.required, self.default) {
            (true, _) => "required".to_owned(),
            (false, Some(text)) => format!("`{text}`"),
            (false, None) => "nil".to_owned(),
        };
        let secret = if self.secret { ", secret" } else { "" };
        let doc = join_doc(self.doc).replace('|', "\\|");
        format!("| `{name}` | {}{choices}{secret} | {default} | {doc} |\n", self.type_name)
    }
}

fn join_doc(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ").trim().to_owned()
}
