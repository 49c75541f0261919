//! The methods of Ruby's strings, numbers, lists and hashes that embedded code may call.

use lib_ruby_parser::Node;

use super::{Evaluator, Halt, MAX_VALUE_BYTES, Value, is_true, raised};

impl Evaluator<'_> {
    /// Calls a method that takes no unevaluated arguments.
    pub(super) fn method(
        &mut self,
        node: &Node,
        receiver: Value,
        name: &str,
        arguments: Vec<Value>,
    ) -> Result<Value, Halt> {
        if let Some(value) = common(&receiver, name, &arguments) {
            return Ok(value);
        }
        let value = match (&receiver, name) {
            (_, "to_s") if arguments.is_empty() => return Ok(Value::Text(self.to_text(&receiver, node)?)),
            (Value::Text(text) | Value::Symbol(text), _) => self.text_method(node, text, name, &arguments)?,
            (Value::Integer(_) | Value::Float(_), _) => {
                self.number_method(node, &receiver, name, &arguments)?
            }
            (Value::List(items), _) => self.list_method(node, items, name, &arguments)?,
            (Value::Hash(entries), _) => hash_method(entries, name, &arguments)?,
            (Value::Nil, "to_i") => Some(Value::Integer(0)),
            (Value::Nil, "to_f") => Some(Value::Float(0.0)),
            (Value::Nil, "to_a") => Some(Value::List(Vec::new())),
            _ => None,
        };
        match (value, &receiver) {
            (Some(value), _) => Ok(value),
            (None, Value::Nil) => raised("NoMethodError", format!("undefined method '{name}' for nil")),
            (None, _) => self.refuse(node, format!("the method '{name}' is not supported here")),
        }
    }

    fn text_method(
        &mut self,
        node: &Node,
        text: &str,
        name: &str,
        arguments: &[Value],
    ) -> Result<Option<Value>, Halt> {
        Ok(Some(match (name, arguments) {
            ("+", [Value::Text(other)]) => Value::Text(format!("{text}{other}")),
            ("+", [_]) => return raised("TypeError", "no implicit conversion into String"),
            ("*", [Value::Integer(count)]) => match usize::try_from(*count) {
                Ok(count) if text.len().saturating_mul(count) <= MAX_VALUE_BYTES => {
                    Value::Text(text.repeat(count))
                }
                Ok(_) => return self.refuse(node, "its value is too large"),
                Err(_) => return raised("ArgumentError", "argument must be non-negative"),
            },
            ("to_i", []) => Value::Integer(leading_integer(text)),
            ("to_f", []) => Value::Float(leading_float(text)),
            ("to_sym", []) => Value::Symbol(text.into()),
            ("strip", []) => Value::Text(text.trim_matches(is_blank).into()),
            ("lstrip", []) => Value::Text(text.trim_start_matches(is_blank).into()),
            ("rstrip", []) => Value::Text(text.trim_end_matches(is_blank).into()),
            ("chomp", []) => Value::Text(chomp(text).into()),
            ("chomp" | "delete_suffix", [Value::Text(end)]) => {
                Value::Text(text.strip_suffix(end.as_str()).unwrap_or(text).into())
            }
            ("delete_prefix", [Value::Text(start)]) => {
                Value::Text(text.strip_prefix(start.as_str()).unwrap_or(text).into())
            }
            ("upcase", []) => Value::Text(text.to_uppercase()),
            ("downcase", []) => Value::Text(text.to_lowercase()),
            ("capitalize", []) => {
                let mut letters = text.chars();
                let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
                Value::Text(first + &letters.as_str().to_lowercase())
            }
            ("reverse", []) => Value::Text(text.chars().rev().collect()),
            // the content of File.open(…) stands for the file
            ("read", []) => Value::Text(text.into()),
            ("length" | "size", []) => Value::Integer(length(text.chars().count())),
            ("empty?", []) => Value::Bool(text.is_empty()),
            ("include?", [Value::Text(part)]) => Value::Bool(text.contains(part.as_str())),
            ("start_with?", [Value::Text(part)]) => Value::Bool(text.starts_with(part.as_str())),
            ("end_with?", [Value::Text(part)]) => Value::Bool(text.ends_with(part.as_str())),
            ("sub", [Value::Text(from), Value::Text(to)]) => Value::Text(text.replacen(from.as_str(), to, 1)),
            ("gsub", [Value::Text(from), Value::Text(to)]) if !from.is_empty() => {
                let grown = text.len().saturating_add(text.matches(from.as_str()).count() * to.len());
                if grown > MAX_VALUE_BYTES {
                    return self.refuse(node, "its value is too large");
                }
                Value::Text(text.replace(from.as_str(), to))
            }
            ("tr", [Value::Text(from), Value::Text(to)])
                if from.chars().count() == 1 && to.chars().count() == 1 =>
            {
                Value::Text(text.replace(from.as_str(), to))
            }
            _ => return Ok(text_part(text, name, arguments)),
        }))
    }

    fn number_method(
        &mut self,
        node: &Node,
        receiver: &Value,
        name: &str,
        arguments: &[Value],
    ) -> Result<Option<Value>, Halt> {
        match (receiver, arguments) {
            (Value::Integer(left), [Value::Integer(right)]) => {
                if matches!(name, "/" | "%") && *right == 0 {
                    return raised("ZeroDivisionError", "divided by 0");
                }
                let value = match name {
                    "+" => left.checked_add(*right),
                    "-" => left.checked_sub(*right),
                    "*" => left.checked_mul(*right),
                    "/" => floor_divide(*left, *right),
                    "%" => floor_divide(*left, *right)
                        .and_then(|quotient| quotient.checked_mul(*right))
                        .and_then(|product| left.checked_sub(product)),
                    "**" => u32::try_from(*right).ok().and_then(|right| left.checked_pow(right)),
                    _ => return Ok(None),
                };
                match value {
                    Some(value) => Ok(Some(Value::Integer(value))),
                    None => self.refuse(node, "the number is too large"),
                }
            }
            (left, [right @ (Value::Integer(_) | Value::Float(_))]) => {
                let (left, right) = (number(left), number(right));
                Ok(Some(Value::Float(match name {
                    "+" => left + right,
                    "-" => left - right,
                    "*" => left * right,
                    "/" => left / right,
                    _ => return Ok(None),
                })))
            }
            (_, [_]) if matches!(name, "+" | "-" | "*" | "/" | "%" | "**") => {
                raised("TypeError", "a number can only be combined with a number")
            }
            (Value::Integer(value), []) => Ok(match name {
                "to_i" | "to_int" | "floor" | "ceil" | "round" | "+@" => Some(Value::Integer(*value)),
                "to_f" => Some(Value::Float(number(receiver))),
                "abs" => value.checked_abs().map(Value::Integer),
                "-@" => value.checked_neg().map(Value::Integer),
                _ => None,
            }),
            (Value::Float(value), []) => Ok(match name {
                "to_f" | "+@" => Some(Value::Float(*value)),
                "to_i" | "to_int" => whole(value.trunc()),
                "floor" => whole(value.floor()),
                "ceil" => whole(value.ceil()),
                "round" => whole(value.round()),
                "abs" => Some(Value::Float(value.abs())),
                "-@" => Some(Value::Float(-value)),
                _ => None,
            }),
            _ => Ok(None),
        }
    }

    fn list_method(
        &mut self,
        node: &Node,
        items: &[Value],
        name: &str,
        arguments: &[Value],
    ) -> Result<Option<Value>, Halt> {
        Ok(Some(match (name, arguments) {
            ("join", []) => Value::Text(self.join(node, items, "")?),
            ("join", [Value::Text(separator)]) => Value::Text(self.join(node, items, separator)?),
            ("[]" | "at", [Value::Integer(at)]) => item_at(items, *at),
            ("first", []) => items.first().cloned().unwrap_or(Value::Nil),
            ("last", []) => items.last().cloned().unwrap_or(Value::Nil),
            ("length" | "size" | "count", []) => Value::Integer(length(items.len())),
            ("empty?", []) => Value::Bool(items.is_empty()),
            ("include?", [item]) => Value::Bool(items.contains(item)),
            ("reverse", []) => Value::List(items.iter().rev().cloned().collect()),
            ("compact", []) => {
                Value::List(items.iter().filter(|item| **item != Value::Nil).cloned().collect())
            }
            ("uniq", []) => {
                let mut unique: Vec<Value> = Vec::new();
                items.iter().for_each(|item| {
                    if !unique.contains(item) {
                        unique.push(item.clone());
                    }
                });
                Value::List(unique)
            }
            ("+", [Value::List(more)]) => Value::List(items.iter().chain(more).cloned().collect()),
            ("map" | "collect", [Value::Symbol(method)]) => {
                let mapped: Result<Vec<Value>, Halt> =
                    items.iter().map(|item| self.method(node, item.clone(), method, Vec::new())).collect();
                Value::List(mapped?)
            }
            _ => return Ok(None),
        }))
    }

    fn join(&self, node: &Node, items: &[Value], separator: &str) -> Result<String, Halt> {
        let texts: Result<Vec<String>, Halt> = items
            .iter()
            .map(|item| match item {
                Value::List(inner) => self.join(node, inner, separator),
                other => self.to_text(other, node),
            })
            .collect();
        Ok(texts?.join(separator))
    }
}

/// Methods that take a text apart.
fn text_part(text: &str, name: &str, arguments: &[Value]) -> Option<Value> {
    Some(match (name, arguments) {
        ("split", []) => texts(text.split_whitespace()),
        ("split", [Value::Text(separator)]) if separator == " " => texts(text.split_whitespace()),
        ("split", [Value::Text(separator)]) if !separator.is_empty() => split(text, separator),
        ("[]", [Value::Integer(at)]) => {
            slice(Value::Text(text.into()), *at, *at, false).unwrap_or(Value::Nil)
        }
        ("[]", [Value::Text(part)]) => {
            if text.contains(part.as_str()) {
                Value::Text(part.clone())
            } else {
                Value::Nil
            }
        }
        ("[]", [Value::Integer(from), Value::Integer(count)]) if *count >= 0 => {
            let to = from.saturating_add(*count);
            let end = if *from < 0 && to >= 0 { -1 } else { to };
            let exclusive = end != -1 || to == -1;
            slice(Value::Text(text.into()), *from, end, exclusive).unwrap_or(Value::Nil)
        }
        _ => return None,
    })
}

/// Methods of every value.
fn common(receiver: &Value, name: &str, arguments: &[Value]) -> Option<Value> {
    Some(Value::Bool(match (name, arguments) {
        ("nil?", []) => *receiver == Value::Nil,
        ("!", []) => !is_true(receiver),
        ("==" | "eql?", [other]) => is_equal(receiver, other),
        ("!=", [other]) => !is_equal(receiver, other),
        ("<" | ">" | "<=" | ">=", [other]) => {
            let order = compare(receiver, other)?;
            match name {
                "<" => order.is_lt(),
                ">" => order.is_gt(),
                "<=" => order.is_le(),
                _ => order.is_ge(),
            }
        }
        _ => return None,
    }))
}

fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Integer(_), Value::Float(_)) | (Value::Float(_), Value::Integer(_)) => {
            number(left) == number(right)
        }
        _ => left == right,
    }
}

fn compare(left: &Value, right: &Value) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
        (Value::Integer(left), Value::Integer(right)) => Some(left.cmp(right)),
        (Value::Integer(_) | Value::Float(_), Value::Integer(_) | Value::Float(_)) => {
            number(left).partial_cmp(&number(right))
        }
        _ => None,
    }
}

fn hash_method(entries: &[(Value, Value)], name: &str, arguments: &[Value]) -> Result<Option<Value>, Halt> {
    let find = |key: &Value| entries.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone());
    Ok(Some(match (name, arguments) {
        ("[]", [key]) => find(key).unwrap_or(Value::Nil),
        ("fetch", [key]) => match find(key) {
            Some(value) => value,
            None => return raised("KeyError", "key not found"),
        },
        ("fetch", [key, default]) => find(key).unwrap_or_else(|| default.clone()),
        ("key?" | "has_key?" | "include?" | "member?", [key]) => Value::Bool(find(key).is_some()),
        ("keys", []) => Value::List(entries.iter().map(|(key, _)| key.clone()).collect()),
        ("values", []) => Value::List(entries.iter().map(|(_, value)| value.clone()).collect()),
        ("length" | "size" | "count", []) => Value::Integer(length(entries.len())),
        ("empty?", []) => Value::Bool(entries.is_empty()),
        _ => return Ok(None),
    }))
}

/// Items or characters from `from` to `to` (negative ones count from the end); `None` for values without order.
pub(super) fn slice(receiver: Value, from: i64, to: i64, exclusive: bool) -> Option<Value> {
    let count = match &receiver {
        Value::Text(text) => text.chars().count(),
        Value::List(items) => items.len(),
        Value::Nil => return None,
        _ => return None,
    };
    let size = length(count);
    let start = if from < 0 { from.saturating_add(size) } else { from };
    let end = if to < 0 { to.saturating_add(size) } else { to };
    let end = if exclusive { end } else { end.saturating_add(1) }.min(size);
    let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end.max(start))) else {
        return Some(Value::Nil);
    };
    // Ruby: one past the end is empty for a range, nil for a single character
    if start > count || (start == count && from == to && !exclusive) {
        return Some(Value::Nil);
    }
    let taken = end.min(count).saturating_sub(start);
    Some(match receiver {
        Value::Text(text) => Value::Text(text.chars().skip(start).take(taken).collect()),
        Value::List(items) => Value::List(items.into_iter().skip(start).take(taken).collect()),
        _ => return None,
    })
}

/// Ruby's `to_s`; `None` for hashes, whose text form differs between Ruby versions.
pub(super) fn to_text(value: &Value) -> Option<String> {
    Some(match value {
        Value::Nil => String::new(),
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => float_text(*value),
        Value::Text(text) | Value::Symbol(text) => text.clone(),
        Value::List(items) => {
            let items: Option<Vec<String>> = items.iter().map(inspect).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Hash(_) => return None,
    })
}

fn inspect(value: &Value) -> Option<String> {
    Some(match value {
        Value::Nil => "nil".into(),
        // only text without anything to escape looks the same in Ruby and here
        Value::Text(text) if !text.chars().any(|c| c.is_control() || matches!(c, '"' | '\\' | '#')) => {
            format!("\"{text}\"")
        }
        Value::Text(_) => return None,
        Value::Symbol(name) => format!(":{name}"),
        other => to_text(other)?,
    })
}

fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = if digits.contains('.') { digits.to_owned() } else { format!("{digits}.0") };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Text with the given number of leading digits, read as `to_i` does; beyond 64 bits it stays at the limit.
fn leading_integer(text: &str) -> i64 {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut value: i64 = 0;
    let mut previous = '_';
    for c in digits.chars() {
        match c.to_digit(10) {
            Some(digit) => value = value.saturating_mul(10).saturating_add(digit.into()),
            None if c == '_' && previous != '_' => {}
            None => break,
        }
        previous = c;
    }
    if negative { -value } else { value }
}

fn leading_float(text: &str) -> f64 {
    use crate::config::FromConfig;
    f64::from_config(text, false).unwrap_or(0.0)
}

fn split(text: &str, separator: &str) -> Value {
    let mut parts: Vec<&str> = text.split(separator).collect();
    while parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    texts(parts.into_iter())
}

fn texts<'a>(parts: impl Iterator<Item = &'a str>) -> Value {
    Value::List(parts.map(|part| Value::Text(part.to_owned())).collect())
}

fn item_at(items: &[Value], at: i64) -> Value {
    let at = if at < 0 { at.saturating_add(length(items.len())) } else { at };
    usize::try_from(at).ok().and_then(|at| items.get(at)).cloned().unwrap_or(Value::Nil)
}

fn chomp(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix(['\n', '\r'])).unwrap_or(text)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' | '\0')
}

fn length(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Integer(value) => *value as f64,
        Value::Float(value) => *value,
        _ => f64::NAN,
    }
}

fn whole(value: f64) -> Option<Value> {
    // beyond this a 64-bit integer cannot hold it; Ruby would
    const LIMIT: f64 = 9.2e18;
    (value.abs() < LIMIT).then_some(Value::Integer(value as i64))
}

fn floor_divide(left: i64, right: i64) -> Option<i64> {
    let quotient = left.checked_div(right)?;
    let exact = quotient.checked_mul(right)? == left;
    Some(if !exact && (left < 0) != (right < 0) { quotient - 1 } else { quotient })
}
