//! Embedded Ruby, `#{…}`: parsed by a Ruby parser, a small subset evaluated, the rest refused by name.
//!
//! The subset is what configurations in the field use to reach the environment: `ENV[]`, `ENV.fetch`, `ENV.key?`, `||`,
//! `&&`, `!`, `?:`, `if`, comparisons, arithmetic, strings with nested `#{}`, arrays, hashes, `[]`, `hostname`,
//! `Socket.gethostname`, `` `hostname` ``, `worker_id`, `use_nil`, `use_default`, `File.read`, and the string, number
//! and list methods of `methods.rs`. Nothing here runs a program, opens a socket or loads code.

mod methods;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lib_ruby_parser::{Loc, Node, Parser, ParserOptions, ParserResult};

use super::environment::Environment;

/// Code longer than this is not a look-up; the parser's work stays bounded.
const MAX_CODE_BYTES: usize = 4_096;
/// How many `}` are tried as the end of the code. Each try parses the code once.
const MAX_ENDS_TRIED: usize = 64;
/// Expressions nested deeper than this are refused before they reach the stack's end.
const MAX_DEPTH: usize = 64;
/// No value grows beyond this (`"x" * 1_000_000_000`).
const MAX_VALUE_BYTES: usize = 1024 * 1024;

/// What embedded code knows of its surroundings.
pub struct Scope<'a> {
    /// Variables, host name, files.
    pub environment: &'a dyn Environment,
    /// The local `worker_id`; empty outside workers.
    pub worker_id: &'a str,
}

/// What an expression comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Nil,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Symbol(String),
    List(Vec<Value>),
    Hash(Vec<(Value, Value)>),
}

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// `use_nil`: the whole parameter is nil.
    UseNil,
    /// `use_default`: the parameter keeps its default.
    UseDefault,
    /// The code raises, here as in Ruby: class and message.
    Raised(String),
    /// Outside the subset; names the expression.
    Refused {
        /// The expression as it is written.
        expression: String,
        /// Why it is refused.
        reason: String,
    },
    /// No `}` makes the text valid Ruby.
    NoEnd,
}

/// Code that was cut out of a text.
#[derive(Debug)]
pub struct Code {
    node: Box<Node>,
    source: Vec<u8>,
    /// How many bytes of the text it takes, without `#{` and `}`.
    pub length: usize,
    /// True if the word `worker_id` stands in it.
    pub mentions_worker_id: bool,
}

/// Cuts the code out of `text`, which begins right after `#{`: the end is the first `}` that makes it valid Ruby.
pub fn scan(text: &str) -> Result<Code, Halt> {
    let ends = text.char_indices().filter(|(_, c)| *c == '}').map(|(at, _)| at);
    for end in ends.take_while(|end| *end <= MAX_CODE_BYTES).take(MAX_ENDS_TRIED) {
        let code = text.get(..end).unwrap_or("");
        if let Some((node, source)) = parse(code) {
            return Ok(Code { node, source, length: end, mentions_worker_id: code.contains("worker_id") });
        }
    }
    Err(Halt::NoEnd)
}

/// Parses `"#{code}"`; `None` when that is not valid Ruby.
fn parse(code: &str) -> Option<(Box<Node>, Vec<u8>)> {
    let source = format!("\"#{{{code}}}\"").into_bytes();
    let input = source.clone();
    // The parser asserts a few things about itself; a configuration file must not end the process through them.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let options = ParserOptions { buffer_name: "(config)".into(), decoder: None, record_tokens: false };
        Parser::new(input, options).do_parse()
    }));
    let ParserResult { ast, diagnostics, .. } = result.ok()?;
    if diagnostics.iter().any(|diagnostic| diagnostic.is_error()) {
        return None;
    }
    // one string that spans all of it: code such as `a}" "#{b` must not pass for two strings
    let node = ast?;
    let whole = node.expression().begin == 0 && node.expression().end == source.len();
    match *node {
        Node::Dstr(ref string) if whole && string.parts.len() <= 1 => Some((node, source)),
        Node::Str(_) if whole => Some((node, source)),
        _ => None,
    }
}

/// The string form of the code.
pub fn evaluate(code: &Code, scope: &Scope<'_>) -> Result<String, Halt> {
    let mut evaluator = Evaluator { scope, source: &code.source, depth: 0 };
    match evaluator.value(&code.node)? {
        Value::Text(text) => Ok(text),
        other => evaluator.to_text(&other, &code.node),
    }
}

struct Evaluator<'a> {
    scope: &'a Scope<'a>,
    source: &'a [u8],
    depth: usize,
}

fn raised<T>(class: &str, message: impl std::fmt::Display) -> Result<T, Halt> {
    Err(Halt::Raised(format!("{class} {message}")))
}

impl Evaluator<'_> {
    fn source_of(&self, location: &Loc) -> String {
        let bytes = self.source.get(location.begin..location.end).unwrap_or(b"");
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn refuse<T>(&self, node: &Node, reason: impl Into<String>) -> Result<T, Halt> {
        Err(Halt::Refused { expression: self.source_of(node.expression()), reason: reason.into() })
    }

    fn value(&mut self, node: &Node) -> Result<Value, Halt> {
        if self.depth >= MAX_DEPTH {
            return self.refuse(node, "it is nested too deeply");
        }
        self.depth += 1;
        let value = self.value_inside(node);
        self.depth -= 1;
        let value = value?;
        if size_of_value(&value) > MAX_VALUE_BYTES {
            return self.refuse(node, "its value is too large");
        }
        Ok(value)
    }

    fn value_inside(&mut self, node: &Node) -> Result<Value, Halt> {
        match node {
            Node::Nil(_) => Ok(Value::Nil),
            Node::True(_) => Ok(Value::Bool(true)),
            Node::False(_) => Ok(Value::Bool(false)),
            Node::Int(number) => self.integer(node, &number.value),
            Node::Float(number) => match number.value.replace('_', "").parse() {
                Ok(value) => Ok(Value::Float(value)),
                Err(_) => self.refuse(node, "it is not a number"),
            },
            Node::Str(text) => Ok(Value::Text(text.value.to_string_lossy())),
            Node::Sym(symbol) => Ok(Value::Symbol(symbol.name.to_string_lossy())),
            Node::Dstr(text) => Ok(Value::Text(self.joined(&text.parts)?)),
            Node::Begin(group) => self.sequence(&group.statements),
            Node::Array(list) => self.values(&list.elements).map(Value::List),
            Node::Hash(hash) => self.hash(&hash.pairs),
            Node::And(pair) => {
                let left = self.value(&pair.lhs)?;
                if is_true(&left) { self.value(&pair.rhs) } else { Ok(left) }
            }
            Node::Or(pair) => {
                let left = self.value(&pair.lhs)?;
                if is_true(&left) { Ok(left) } else { self.value(&pair.rhs) }
            }
            Node::IfTernary(choice) => {
                let branch =
                    if is_true(&self.value(&choice.cond)?) { &choice.if_true } else { &choice.if_false };
                self.value(branch)
            }
            Node::If(choice) => self.branch(&choice.cond, &choice.if_true, &choice.if_false),
            Node::IfMod(choice) => self.branch(&choice.cond, &choice.if_true, &choice.if_false),
            Node::Xstr(command) => {
                if self.joined(&command.parts)?.trim() == "hostname" {
                    return Ok(Value::Text(format!("{}\n", self.scope.environment.host_name())));
                }
                self.refuse(node, "programs are not run; only `hostname` is known")
            }
            Node::Index(index) => self.index(node, &index.recv, &index.indexes),
            Node::Send(call) => self.call(node, call.recv.as_deref(), &call.method_name, &call.args),
            Node::CSend(call) => match self.value(&call.recv)? {
                Value::Nil => Ok(Value::Nil),
                receiver => {
                    let arguments = self.arguments(node, &call.args)?;
                    self.method(node, receiver, &call.method_name, arguments)
                }
            },
            Node::Block(block) => self.block(node, block),
            Node::Rescue(rescue) => self.rescue(node, rescue),
            _ => self.refuse(node, "this part of Ruby is not supported"),
        }
    }

    fn integer(&self, node: &Node, text: &str) -> Result<Value, Halt> {
        let text = text.replace('_', "").to_ascii_lowercase();
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.as_str()),
        };
        let parsed = match (digits.get(..2), digits.get(2..)) {
            (Some("0x"), Some(rest)) => i64::from_str_radix(rest, 16),
            (Some("0b"), Some(rest)) => i64::from_str_radix(rest, 2),
            (Some("0o"), Some(rest)) => i64::from_str_radix(rest, 8),
            _ if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(digits, 8),
            _ => digits.parse(),
        };
        match parsed {
            Ok(value) => Ok(Value::Integer(if negative { -value } else { value })),
            Err(_) => self.refuse(node, "the number is too large"),
        }
    }

    fn joined(&mut self, parts: &[Node]) -> Result<String, Halt> {
        let mut text = String::new();
        for part in parts {
            let value = self.value(part)?;
            text.push_str(&self.to_text(&value, part)?);
            if text.len() > MAX_VALUE_BYTES {
                return self.refuse(part, "its value is too large");
            }
        }
        Ok(text)
    }

    fn sequence(&mut self, statements: &[Node]) -> Result<Value, Halt> {
        let mut last = Value::Nil;
        for statement in statements {
            last = self.value(statement)?;
        }
        Ok(last)
    }

    fn values(&mut self, nodes: &[Node]) -> Result<Vec<Value>, Halt> {
        nodes.iter().map(|node| self.value(node)).collect()
    }

    fn hash(&mut self, pairs: &[Node]) -> Result<Value, Halt> {
        let mut entries: Vec<(Value, Value)> = Vec::new();
        for pair in pairs {
            let Node::Pair(pair) = pair else { return self.refuse(pair, "only key => value is supported") };
            let (key, value) = (self.value(&pair.key)?, self.value(&pair.value)?);
            match entries.iter_mut().find(|(known, _)| *known == key) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
        }
        Ok(Value::Hash(entries))
    }

    fn branch(
        &mut self,
        condition: &Node,
        if_true: &Option<Box<Node>>,
        if_false: &Option<Box<Node>>,
    ) -> Result<Value, Halt> {
        let branch = if is_true(&self.value(condition)?) { if_true } else { if_false };
        branch.as_ref().map_or(Ok(Value::Nil), |node| self.value(node))
    }

    fn rescue(&mut self, node: &Node, rescue: &lib_ruby_parser::nodes::Rescue) -> Result<Value, Halt> {
        let body = rescue.body.as_ref().map_or(Ok(Value::Nil), |body| self.value(body));
        let Err(Halt::Raised(_)) = body else { return body };
        match rescue.rescue_bodies.first() {
            Some(Node::RescueBody(handler)) if handler.exc_list.is_none() && handler.exc_var.is_none() => {
                handler.body.as_ref().map_or(Ok(Value::Nil), |body| self.value(body))
            }
            _ => self.refuse(node, "only a bare rescue is supported"),
        }
    }

    fn index(&mut self, node: &Node, receiver: &Node, indexes: &[Node]) -> Result<Value, Halt> {
        if is_constant(receiver, "ENV") {
            return match self.values(indexes)?.as_slice() {
                [Value::Text(name)] => Ok(self.variable(name)),
                _ => raised("TypeError", "ENV[] takes one string"),
            };
        }
        let receiver = self.value(receiver)?;
        if let [range @ (Node::Irange(_) | Node::Erange(_))] = indexes {
            return self.slice(node, receiver, range);
        }
        let arguments = self.values(indexes)?;
        self.method(node, receiver, "[]", arguments)
    }

    /// `text[a..b]`, `list[a...b]`.
    fn slice(&mut self, node: &Node, receiver: Value, range: &Node) -> Result<Value, Halt> {
        let (left, right, exclusive) = match range {
            Node::Irange(range) => (&range.left, &range.right, false),
            Node::Erange(range) => (&range.left, &range.right, true),
            _ => return self.refuse(node, "only a range is supported here"),
        };
        let mut bound = |side: &Option<Box<Node>>, otherwise: i64| match side {
            None => Ok(otherwise),
            Some(side) => match self.value(side)? {
                Value::Integer(value) => Ok(value),
                _ => raised("TypeError", "a range here takes integers"),
            },
        };
        let (from, to) = (bound(left, 0)?, bound(right, -1)?);
        let exclusive = exclusive && right.is_some();
        methods::slice(receiver, from, to, exclusive)
            .map_or_else(|| self.refuse(node, "only strings and arrays can be cut"), Ok)
    }

    fn variable(&self, name: &str) -> Value {
        self.scope.environment.variable(name).map_or(Value::Nil, Value::Text)
    }

    fn call(
        &mut self,
        node: &Node,
        receiver: Option<&Node>,
        name: &str,
        arguments: &[Node],
    ) -> Result<Value, Halt> {
        match receiver {
            None => self.function(node, name, arguments),
            Some(receiver) => match constant_name(receiver) {
                Some("ENV") => {
                    let arguments = self.arguments(node, arguments)?;
                    self.env_method(node, name, &arguments, None)
                }
                Some(constant) => self.constant_method(node, constant, name, arguments),
                None => {
                    let receiver = self.value(receiver)?;
                    let arguments = self.arguments(node, arguments)?;
                    self.method(node, receiver, name, arguments)
                }
            },
        }
    }

    /// Argument values; `&:name` comes as the symbol.
    fn arguments(&mut self, node: &Node, arguments: &[Node]) -> Result<Vec<Value>, Halt> {
        let mut values = Vec::new();
        for argument in arguments {
            values.push(match argument {
                Node::BlockPass(pass) => match pass.value.as_deref() {
                    Some(Node::Sym(symbol)) => Value::Symbol(symbol.name.to_string_lossy()),
                    _ => return self.refuse(node, "only &:name is supported as a block"),
                },
                other => self.value(other)?,
            });
        }
        Ok(values)
    }

    fn function(&mut self, node: &Node, name: &str, arguments: &[Node]) -> Result<Value, Halt> {
        let values = match name {
            "use_nil" if arguments.is_empty() => return Err(Halt::UseNil),
            "use_default" if arguments.is_empty() => return Err(Halt::UseDefault),
            "hostname" if arguments.is_empty() => {
                return Ok(Value::Text(self.scope.environment.host_name()));
            }
            "worker_id" if arguments.is_empty() => return Ok(Value::Text(self.scope.worker_id.to_owned())),
            "raise" | "require" | "Integer" | "Float" | "String" => self.values(arguments)?,
            _ => return self.refuse(node, format!("'{name}' is not supported here")),
        };
        match (name, values.as_slice()) {
            ("raise", []) => raised("RuntimeError", "unhandled exception"),
            ("raise", [message]) => raised("RuntimeError", self.to_text(message, node)?),
            // nothing needs to be loaded for what is supported
            ("require", [Value::Text(library)]) if library == "socket" => Ok(Value::Bool(false)),
            ("require", _) => self.refuse(node, "Ruby libraries cannot be loaded"),
            ("Integer", [Value::Text(text)]) => match text.trim().parse() {
                Ok(value) => Ok(Value::Integer(value)),
                Err(_) => raised("ArgumentError", format!("invalid value for Integer(): {text:?}")),
            },
            ("Integer", [Value::Integer(value)]) => Ok(Value::Integer(*value)),
            ("Float", [Value::Text(text)]) => match text.trim().parse() {
                Ok(value) => Ok(Value::Float(value)),
                Err(_) => raised("ArgumentError", format!("invalid value for Float(): {text:?}")),
            },
            ("String", [value]) => Ok(Value::Text(self.to_text(value, node)?)),
            ("Integer" | "Float", [Value::Nil]) => raised("TypeError", "can't convert nil into a number"),
            _ => self.refuse(node, format!("'{name}' is not supported with these arguments")),
        }
    }

    fn env_method(
        &mut self,
        node: &Node,
        name: &str,
        arguments: &[Value],
        block: Option<&Node>,
    ) -> Result<Value, Halt> {
        match (name, arguments) {
            ("fetch", [Value::Text(variable)]) => match (self.variable(variable), block) {
                (Value::Nil, Some(block)) => self.value(block),
                (Value::Nil, None) => raised("KeyError", format!("key not found: {variable:?}")),
                (value, _) => Ok(value),
            },
            ("fetch", [Value::Text(variable), default]) => match self.variable(variable) {
                Value::Nil => Ok(default.clone()),
                value => Ok(value),
            },
            ("[]", [Value::Text(variable)]) => Ok(self.variable(variable)),
            ("key?" | "has_key?" | "include?" | "member?", [Value::Text(variable)]) => {
                Ok(Value::Bool(self.variable(variable) != Value::Nil))
            }
            _ => self.refuse(node, format!("ENV.{name} is not supported")),
        }
    }

    fn constant_method(
        &mut self,
        node: &Node,
        constant: &str,
        name: &str,
        arguments: &[Node],
    ) -> Result<Value, Halt> {
        let arguments = self.arguments(node, arguments)?;
        match (constant, name, arguments.as_slice()) {
            ("Socket", "gethostname", []) => Ok(Value::Text(self.scope.environment.host_name())),
            ("File" | "IO", "read", [Value::Text(path)]) => self.read_file(path),
            // the object is only good for `.read`, so its content can stand for it
            ("File", "open", [Value::Text(path)]) => self.read_file(path),
            ("File", "open", [Value::Text(path), Value::Text(mode)]) if mode.starts_with('r') => {
                self.read_file(path)
            }
            ("File" | "IO", "read" | "open", [Value::Nil, ..]) => {
                raised("TypeError", "no implicit conversion of nil into String")
            }
            ("File", "exist?" | "file?", [Value::Text(path)]) => {
                Ok(Value::Bool(self.scope.environment.read_file(Path::new(path)).is_ok()))
            }
            ("File", "basename", [Value::Text(path)]) => {
                let name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
                Ok(Value::Text(name.unwrap_or_else(|| path.clone())))
            }
            ("File", "join", parts) => {
                let parts: Result<Vec<String>, Halt> = parts.iter().map(|p| self.to_text(p, node)).collect();
                Ok(Value::Text(parts?.join("/")))
            }
            _ => self.refuse(node, format!("{constant}.{name} is not supported")),
        }
    }

    fn read_file(&self, path: &str) -> Result<Value, Halt> {
        match self.scope.environment.read_file(Path::new(path)) {
            Ok(content) => Ok(Value::Text(String::from_utf8_lossy(&content).into_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                raised("Errno::ENOENT", format!("No such file or directory @ rb_sysopen - {path}"))
            }
            Err(error) => raised("IOError", format!("{path}: {error}")),
        }
    }

    /// `ENV.fetch('X') { default }`; other blocks are refused.
    fn block(&mut self, node: &Node, block: &lib_ruby_parser::nodes::Block) -> Result<Value, Halt> {
        if let Node::Send(call) = block.call.as_ref()
            && call.recv.as_deref().is_some_and(|receiver| is_constant(receiver, "ENV"))
            && block.args.is_none()
            && let Some(body) = &block.body
        {
            let arguments = self.arguments(node, &call.args)?;
            return self.env_method(node, &call.method_name, &arguments, Some(body));
        }
        self.refuse(node, "blocks are not supported")
    }

    fn to_text(&self, value: &Value, node: &Node) -> Result<String, Halt> {
        methods::to_text(value).map_or_else(|| self.refuse(node, "a hash has no text form here"), Ok)
    }
}

fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Nil | Value::Bool(false))
}

fn constant_name(node: &Node) -> Option<&str> {
    match node {
        Node::Const(constant) if constant.scope.is_none() => Some(&constant.name),
        // `::ENV`
        Node::Const(constant) if matches!(constant.scope.as_deref(), Some(Node::Cbase(_))) => {
            Some(&constant.name)
        }
        _ => None,
    }
}

fn is_constant(node: &Node, name: &str) -> bool {
    constant_name(node) == Some(name)
}

fn size_of_value(value: &Value) -> usize {
    match value {
        Value::Nil | Value::Bool(_) | Value::Integer(_) | Value::Float(_) => 8,
        Value::Text(text) | Value::Symbol(text) => text.len(),
        Value::List(items) => items.iter().map(|item| 16 + size_of_value(item)).sum(),
        Value::Hash(entries) => {
            entries.iter().map(|(key, value)| 16 + size_of_value(key) + size_of_value(value)).sum()
        }
    }
}

#[cfg(test)]
mod tests;
