//! The rules by name, with their parameters: what a job may ask for.
//!
//! One file a rule; its line in [`RULES`] is all that makes it known to jobs, to the wire and to `bench`.

mod centered_clipping;
mod fedavg;
mod fedavg_clipped;
mod fltrust;
mod geometric_median;
mod krum;
mod median;
mod multi_krum;
mod trimmed_mean;

pub use centered_clipping::CenteredClipping;
pub use fedavg::FedAvg;
pub use fedavg_clipped::FedAvgClipped;
pub use fltrust::FlTrust;
pub use geometric_median::GeometricMedian;
pub use krum::Krum;
pub use median::Median;
pub use multi_krum::MultiKrum;
pub use trimmed_mean::TrimmedMean;

use std::collections::BTreeMap;

use super::Aggregator;

/// Every rule that a job may name.
pub const RULES: &[Rule] = &[
    fedavg::RULE,
    fedavg_clipped::RULE,
    median::RULE,
    trimmed_mean::RULE,
    krum::RULE,
    multi_krum::RULE,
    centered_clipping::RULE,
    geometric_median::RULE,
];

/// Most parameters of a rule.
pub const MAX_PARAMS: usize = 16;
/// Longest name of a rule or parameter.
pub const MAX_NAME: usize = 64;

/// A rule's name, its parameters, and how it is made of them.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// As in `job.toml`.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// What it can be given.
    pub params: &'static [Param],
    /// Makes it of parameters that are all there and in range.
    pub build: fn(&Params) -> Box<dyn Aggregator>,
}

/// A parameter of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// As in `job.toml`.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// What it is where it is not given; `None` if it must be given.
    pub default: Option<f64>,
    /// The range in words.
    pub allowed: &'static str,
    /// The range.
    pub fits: fn(f64) -> bool,
}

impl Param {
    /// Whether examples weigh, as 0 or 1.
    const fn weighted(default: bool) -> Self {
        Self {
            name: "weighted",
            about: "whether an update weighs by its examples",
            default: Some(if default { 1.0 } else { 0.0 }),
            allowed: "true or false",
            fits: |value| whole(value, 0.0, 1.0),
        }
    }

    /// How many updates may be bad.
    const NUM_MALICIOUS: Self = Self {
        name: "num_malicious",
        about: "updates of a round that may be bad",
        default: None,
        allowed: "a whole number of 0 to 100000",
        fits: |value| whole(value, 0.0, 100_000.0),
    };

    /// How often the result is improved.
    const fn iterations(default: f64) -> Self {
        Self {
            name: "iterations",
            about: "steps towards the result",
            default: Some(default),
            allowed: "a whole number of 1 to 1000",
            fits: |value| whole(value, 1.0, 1000.0),
        }
    }

    /// A norm that is clipped to.
    const CLIP_NORM: Self = Self {
        name: "clip_norm",
        about: "L2 norm that is clipped to, in parameter units; 0 takes the median of the round",
        default: Some(0.0),
        allowed: "0 or more",
        fits: |value| value.is_finite() && value >= 0.0,
    };
}

fn whole(value: f64, least: f64, most: f64) -> bool {
    (least..=most).contains(&value) && value.fract() == 0.0
}

/// Parameters of a rule, all of them, in range.
#[derive(Clone, Debug, PartialEq)]
pub struct Params(BTreeMap<&'static str, f64>);

impl Params {
    /// A parameter that the rule has.
    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// A parameter that is a count.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number of at most 100000, as its range says"
    )]
    fn count(&self, name: &str) -> usize {
        self.get(name) as usize
    }

    /// A parameter that is true or false.
    fn is(&self, name: &str) -> bool {
        self.get(name) > 0.0
    }
}

/// A rule that cannot be used, with the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// No such rule.
    #[error("rule {got:?} is not known, there are {known}")]
    Unknown {
        /// As given, cut to 64 characters.
        got: String,
        /// Those that are.
        known: String,
    },
    /// No such parameter.
    #[error("rule {rule} has no parameter {got:?}, it has {known}")]
    Param {
        /// The rule.
        rule: &'static str,
        /// As given, cut to 64 characters.
        got: String,
        /// Those that it has.
        known: String,
    },
    /// A parameter that must be given.
    #[error("rule {rule} needs {param} ({about})")]
    Missing {
        /// The rule.
        rule: &'static str,
        /// The parameter.
        param: &'static str,
        /// What it is.
        about: &'static str,
    },
    /// A parameter out of its range.
    #[error("{param} of rule {rule} is {got}, allowed is {allowed}")]
    Range {
        /// The rule.
        rule: &'static str,
        /// The parameter.
        param: &'static str,
        /// As given.
        got: f64,
        /// The range in words.
        allowed: &'static str,
    },
    /// A round may close with too few updates for it.
    #[error(
        "rule {rule} needs {least} updates, but a round may close with {fewest}: raise min_vehicles or quorum, or let the rule bear less"
    )]
    Impossible {
        /// The rule.
        rule: String,
        /// What it needs.
        least: usize,
        /// What may happen.
        fewest: usize,
    },
}

/// A rule as a job names it.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    /// Its name.
    pub name: String,
    /// Parameters that are given; true is 1, false is 0.
    pub params: BTreeMap<String, f64>,
}

impl Default for RuleSpec {
    fn default() -> Self {
        Self::named(fedavg::RULE.name)
    }
}

impl RuleSpec {
    /// A rule with its default parameters.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            params: BTreeMap::new(),
        }
    }

    /// The same with one more parameter.
    #[must_use]
    pub fn with(mut self, param: &str, value: f64) -> Self {
        self.params.insert(param.to_owned(), value);
        self
    }

    /// Makes the rule.
    ///
    /// # Errors
    /// [`RuleError`] names what is wrong and what would be right.
    pub fn build(&self) -> Result<Box<dyn Aggregator>, RuleError> {
        let cut = |text: &str| text.chars().take(MAX_NAME).collect();
        let rule = RULES.iter().find(|rule| rule.name == self.name);
        let rule = rule.ok_or_else(|| RuleError::Unknown {
            got: cut(&self.name),
            known: names(RULES.iter().map(|rule| rule.name)),
        })?;
        let known = |name: &String| rule.params.iter().any(|param| param.name == name);
        if let Some(got) = self.params.keys().find(|name| !known(name)) {
            return Err(RuleError::Param {
                rule: rule.name,
                got: cut(got),
                known: names(rule.params.iter().map(|param| param.name)),
            });
        }
        let mut params = BTreeMap::new();
        for param in rule.params {
            let given = self.params.get(param.name).copied().or(param.default);
            let value = given.ok_or(RuleError::Missing {
                rule: rule.name,
                param: param.name,
                about: param.about,
            })?;
            if !(param.fits)(value) {
                return Err(RuleError::Range {
                    rule: rule.name,
                    param: param.name,
                    got: value,
                    allowed: param.allowed,
                });
            }
            params.insert(param.name, value);
        }
        Ok((rule.build)(&Params(params)))
    }

    /// Checks that the rule can be made, and that a round that closes with `fewest` updates is enough for it.
    ///
    /// # Errors
    /// [`RuleError`] names what is wrong and what would be right.
    pub fn check(&self, fewest: usize) -> Result<(), RuleError> {
        let least = self.build()?.least_updates();
        if least > fewest {
            return Err(RuleError::Impossible {
                rule: self.name.clone(),
                least,
                fewest,
            });
        }
        Ok(())
    }

    /// It is plain FedAvg by examples: sums of sums are the sum.
    pub fn is_fedavg(&self) -> bool {
        self.name == fedavg::RULE.name && self.params.get("weighted").is_none_or(|w| *w > 0.0)
    }
}

fn names(all: impl Iterator<Item = &'static str>) -> String {
    let all: Vec<_> = all.collect();
    if all.is_empty() {
        return "none".to_owned();
    }
    all.join(", ")
}

/// The middle value; the mean of the two middle ones of an even number; 0 of none.
fn median_of(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests;
