//! A parsed configuration whose every value knows where it came from, and the serde deserializer over it.
//!
//! The `toml` crate's own deserializer forgets the line once values from several sources are merged, and cannot say
//! which known key is nearest; hence this one.

use std::collections::BTreeMap;
use std::fmt;
use std::vec;

use serde::de::value::StringDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Expected, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde::de::{IntoDeserializer, VariantAccess};
use toml::de::{DeTable, DeValue};

/// Where a value came from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// The document itself.
    Top,
    /// A line of the file, counted from 1.
    File { line: usize },
    /// An environment variable, by name.
    Env(String),
    /// A `-c` option, by key.
    Override(String),
}

/// One value and its origin.
#[derive(Debug)]
pub(super) struct Node {
    origin: Origin,
    kind: Kind,
    /// The text of a value from outside the file, taken as it is where a string is wanted.
    raw: Option<String>,
}

#[derive(Debug)]
enum Kind {
    Boolean(bool),
    Integer(i128),
    Float(f64),
    String(String),
    Array(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

/// What was wrong with one value.
#[derive(Debug)]
pub(super) enum What {
    UnknownKey { known: Vec<String> },
    MissingKey,
    WrongType(String),
    Twice,
    OutOfRange(String),
}

/// Why a tree does not fit the configuration struct.
#[derive(Debug)]
pub(super) struct Fault {
    /// Keys from the top; an element of an array is `[i]`.
    pub(super) path: Vec<String>,
    /// Origin of the value at fault, once known.
    pub(super) origin: Option<Origin>,
    pub(super) what: What,
}

/// `round.links[2].host`.
pub(super) fn dotted(path: &[String]) -> String {
    let mut text = String::new();
    for segment in path {
        if !text.is_empty() && !segment.starts_with('[') {
            text.push('.');
        }
        text.push_str(segment);
    }
    text
}

/// The spelling that keys are compared in.
pub(super) fn snake(key: &str) -> String {
    key.replace('-', "_")
}

impl Node {
    /// A configuration that says nothing.
    pub(super) fn empty() -> Self {
        Self {
            origin: Origin::Top,
            kind: Kind::Table(BTreeMap::new()),
            raw: None,
        }
    }

    /// Parses a file; on failure the line, counted from 1, and the reason.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let lines = Lines::of(text);
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| lines.number(span.start));
            (line, error.message().to_owned())
        })?;
        let table = convert_table(document.into_inner(), &|offset| Origin::File {
            line: lines.number(offset),
        })
        .map_err(|(offset, message)| (lines.number(offset), message))?;
        Ok(Self {
            origin: Origin::Top,
            kind: table,
            raw: None,
        })
    }

    /// A value from outside the file: TOML if it parses as such, else a string.
    pub(super) fn from_text(text: &str, origin: Origin) -> Self {
        let parsed = DeValue::parse(text.trim()).ok();
        let kind = parsed
            .and_then(|value| convert(value.into_inner(), 0, &|_| origin.clone()).ok())
            .unwrap_or_else(|| Kind::String(text.to_owned()));
        let raw = (!matches!(kind, Kind::String(_))).then(|| text.to_owned());
        Self { origin, kind, raw }
    }

    /// Puts `value` under the dotted key `segments` (not empty), making sections on the way.
    pub(super) fn set(&mut self, segments: &[&str], value: Self) -> Result<(), Fault> {
        let mut section = self;
        for (depth, segment) in segments.iter().enumerate() {
            let Kind::Table(entries) = &mut section.kind else {
                return Err(Fault {
                    path: segments[..depth].iter().map(ToString::to_string).collect(),
                    origin: Some(value.origin),
                    what: What::WrongType("is a value, expected a section".to_owned()),
                });
            };
            let key = spelling(entries, segment);
            if depth + 1 == segments.len() {
                entries.insert(key, value);
                return Ok(());
            }
            section = entries.entry(key).or_insert_with(|| Self {
                origin: value.origin.clone(),
                kind: Kind::Table(BTreeMap::new()),
                raw: None,
            });
        }
        Ok(())
    }

    fn wrong_type(&self, expected: &str) -> Fault {
        let got = match self.kind {
            Kind::Boolean(_) => "is a boolean",
            Kind::Integer(_) => "is an integer",
            Kind::Float(_) => "is a float",
            Kind::String(_) => "is a string",
            Kind::Array(_) => "is an array",
            Kind::Table(_) => "is a section",
        };
        let what = What::WrongType(format!("{got}, expected {expected}"));
        Fault {
            path: Vec::new(),
            origin: Some(self.origin.clone()),
            what,
        }
    }
}

/// The spelling under which `key` already stands in `entries`, else `key` itself.
fn spelling(entries: &BTreeMap<String, Node>, key: &str) -> String {
    if entries.contains_key(key) {
        return key.to_owned();
    }
    let wanted = snake(key);
    entries
        .keys()
        .find(|known| snake(known) == wanted)
        .cloned()
        .unwrap_or_else(|| key.to_owned())
}

/// Byte offsets of line ends, to turn an offset into a line number.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(
            text.bytes()
                .enumerate()
                .filter(|(_, byte)| *byte == b'\n')
                .map(|(offset, _)| offset)
                .collect(),
        )
    }

    fn number(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|&end| end < offset)
    }
}

/// Turns a parsed table into ours; on failure the offset and the reason. The parser bounds the depth.
fn convert_table(
    table: DeTable<'_>,
    origin_at: &dyn Fn(usize) -> Origin,
) -> Result<Kind, (usize, String)> {
    let mut entries = BTreeMap::new();
    for (key, value) in table {
        let offset = key.span().start;
        let kind = convert(value.into_inner(), offset, origin_at)?;
        entries.insert(
            key.into_inner().into_owned(),
            Node {
                origin: origin_at(offset),
                kind,
                raw: None,
            },
        );
    }
    Ok(Kind::Table(entries))
}

fn convert(
    value: DeValue<'_>,
    offset: usize,
    origin_at: &dyn Fn(usize) -> Origin,
) -> Result<Kind, (usize, String)> {
    Ok(match value {
        DeValue::String(text) => Kind::String(text.into_owned()),
        DeValue::Integer(digits) => {
            let number = i128::from_str_radix(digits.as_str(), digits.radix());
            Kind::Integer(number.map_err(|_| (offset, format!("integer {digits} is too large")))?)
        }
        DeValue::Float(digits) => Kind::Float(
            digits
                .as_str()
                .parse()
                .map_err(|_| (offset, format!("{digits} is not a float")))?,
        ),
        DeValue::Boolean(value) => Kind::Boolean(value),
        DeValue::Datetime(time) => Kind::String(time.to_string()),
        DeValue::Array(elements) => {
            let mut nodes = Vec::with_capacity(elements.len());
            for element in elements {
                let offset = element.span().start;
                let kind = convert(element.into_inner(), offset, origin_at)?;
                nodes.push(Node {
                    origin: origin_at(offset),
                    kind,
                    raw: None,
                });
            }
            Kind::Array(nodes)
        }
        DeValue::Table(table) => convert_table(table, origin_at)?,
    })
}

impl Fault {
    fn new(what: What) -> Self {
        Self {
            path: Vec::new(),
            origin: None,
            what,
        }
    }

    /// The same fault, seen from the section that holds the faulty value as `key`.
    fn under(mut self, key: &str, origin: &Origin) -> Self {
        self.path.insert(0, key.to_owned());
        self.origin.get_or_insert_with(|| origin.clone());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {:?}", dotted(&self.path), self.what)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(What::OutOfRange(message.to_string()))
    }

    fn invalid_type(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let got = match got {
            Unexpected::Bool(_) => "a boolean",
            Unexpected::Signed(_) | Unexpected::Unsigned(_) => "an integer",
            Unexpected::Float(_) => "a float",
            Unexpected::Str(_) => "a string",
            Unexpected::Seq => "an array",
            Unexpected::Map => "a section",
            other => return Self::new(What::WrongType(format!("is {other}, expected {expected}"))),
        };
        Self::new(What::WrongType(format!("is {got}, expected {expected}")))
    }

    fn invalid_value(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(What::OutOfRange(format!("is {got}, expected {expected}")))
    }

    fn invalid_length(got: usize, expected: &dyn Expected) -> Self {
        Self::new(What::OutOfRange(format!(
            "has {got} elements, expected {expected}"
        )))
    }

    fn unknown_variant(got: &str, known: &'static [&'static str]) -> Self {
        Self::new(What::OutOfRange(format!(
            "is `{got}`, expected one of {}",
            known.join(", ")
        )))
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let known = known.iter().map(ToString::to_string).collect();
        Self {
            path: vec![field.to_owned()],
            origin: None,
            what: What::UnknownKey { known },
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            path: vec![field.to_owned()],
            origin: None,
            what: What::MissingKey,
        }
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self {
            path: vec![field.to_owned()],
            origin: None,
            what: What::Twice,
        }
    }
}

impl<'de> Deserializer<'de> for Node {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let origin = self.origin;
        let result = match self.kind {
            Kind::Boolean(value) => visitor.visit_bool(value),
            Kind::Integer(value) => match (i64::try_from(value), u64::try_from(value)) {
                (Ok(value), _) => visitor.visit_i64(value),
                (_, Ok(value)) => visitor.visit_u64(value),
                _ => visitor.visit_i128(value),
            },
            Kind::Float(value) => visitor.visit_f64(value),
            Kind::String(value) => visitor.visit_string(value),
            Kind::Array(nodes) => visitor.visit_seq(Elements {
                nodes: nodes.into_iter(),
                next: 0,
            }),
            Kind::Table(entries) => visitor.visit_map(Entries::new(entries.into_iter().collect())),
        };
        result.map_err(|mut fault| {
            fault.origin.get_or_insert(origin);
            fault
        })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Fault> {
        if let Some(raw) = self.raw.take() {
            self.kind = Kind::String(raw);
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let entries = match self.kind {
            Kind::Table(entries) => entries,
            other => {
                self.kind = other;
                return Err(self.wrong_type("a section"));
            }
        };
        let mut fields: Vec<(String, Node)> = Vec::with_capacity(entries.len());
        for (key, node) in entries {
            let wanted = snake(&key);
            let Some(field) = known.iter().find(|field| snake(field) == wanted) else {
                let fault: Fault = de::Error::unknown_field(&key, known);
                return Err(Fault {
                    origin: Some(node.origin),
                    ..fault
                });
            };
            if fields.iter().any(|(earlier, _)| earlier == field) {
                return Err(Fault::new(What::Twice).under(field, &node.origin));
            }
            fields.push(((*field).to_owned(), node));
        }
        visitor
            .visit_map(Entries::new(fields))
            .map_err(|mut fault| {
                fault.origin.get_or_insert(self.origin);
                fault
            })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let origin = self.origin.clone();
        let known_spelling = |name: &str| {
            let wanted = snake(name);
            known
                .iter()
                .find(|variant| snake(variant) == wanted)
                .map_or(name, |variant| variant)
                .to_owned()
        };
        let choice = match self.kind {
            Kind::String(name) => Choice {
                name: known_spelling(&name),
                content: None,
            },
            Kind::Table(entries) if entries.len() == 1 => {
                let (name, content) = entries.into_iter().next().expect("the length is one");
                Choice {
                    name: known_spelling(&name),
                    content: Some(content),
                }
            }
            other => {
                self.kind = other;
                return Err(self.wrong_type(&format!("one of {}", known.join(", "))));
            }
        };
        visitor.visit_enum(choice).map_err(|mut fault| {
            fault.origin.get_or_insert(origin);
            fault
        })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl IntoDeserializer<'_, Fault> for Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

struct Elements {
    nodes: vec::IntoIter<Node>,
    next: usize,
}

impl<'de> SeqAccess<'de> for Elements {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some(node) = self.nodes.next() else {
            return Ok(None);
        };
        let key = format!("[{}]", self.next);
        self.next += 1;
        let origin = node.origin.clone();
        seed.deserialize(node)
            .map(Some)
            .map_err(|fault| fault.under(&key, &origin))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.nodes.len())
    }
}

struct Entries {
    rest: vec::IntoIter<(String, Node)>,
    current: Option<(String, Node)>,
}

impl Entries {
    fn new(entries: Vec<(String, Node)>) -> Self {
        Self {
            rest: entries.into_iter(),
            current: None,
        }
    }
}

impl<'de> MapAccess<'de> for Entries {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        self.current = self.rest.next();
        let Some((key, node)) = &self.current else {
            return Ok(None);
        };
        let name: StringDeserializer<Fault> = key.clone().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|mut fault| {
            if fault.path.is_empty() {
                fault.path.push(key.clone());
            }
            fault.origin.get_or_insert_with(|| node.origin.clone());
            fault
        })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let (key, node) = self
            .current
            .take()
            .expect("serde asks for a value only after its key");
        let origin = node.origin.clone();
        seed.deserialize(node)
            .map_err(|fault| fault.under(&key, &origin))
    }
}

/// A variant by name, or as a section of one key.
struct Choice {
    name: String,
    content: Option<Node>,
}

impl<'de> EnumAccess<'de> for Choice {
    type Error = Fault;
    type Variant = Content;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content), Fault> {
        let name: StringDeserializer<Fault> = self.name.clone().into_deserializer();
        Ok((
            seed.deserialize(name)?,
            Content {
                name: self.name,
                node: self.content,
            },
        ))
    }
}

struct Content {
    name: String,
    node: Option<Node>,
}

impl Content {
    fn with<T>(self, read: impl FnOnce(Node) -> Result<T, Fault>) -> Result<T, Fault> {
        let Self { name, node } = self;
        let Some(node) = node else {
            return Err(Fault::new(What::WrongType(format!(
                "is `{name}` alone, expected a section `{name}`"
            ))));
        };
        let origin = node.origin.clone();
        read(node).map_err(|fault| fault.under(&name, &origin))
    }
}

impl<'de> VariantAccess<'de> for Content {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.node {
            None => Ok(()),
            Some(node) => {
                let origin = node.origin.clone();
                Err(node.wrong_type("the name alone").under(&self.name, &origin))
            }
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        self.with(|node| seed.deserialize(node))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.with(|node| node.deserialize_any(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.with(|node| node.deserialize_struct("", known, visitor))
    }
}
