use super::*;

fn error(spec: &RuleSpec) -> String {
    spec.build().expect_err("not a rule").to_string()
}

#[test]
fn every_rule_can_be_made_and_says_what_it_is() {
    for rule in RULES {
        let mut spec = RuleSpec::named(rule.name);
        for param in rule.params.iter().filter(|param| param.default.is_none()) {
            spec = spec.with(param.name, 1.0);
        }
        assert!(spec.build().is_ok(), "{}", rule.name);
        assert!(rule.name.len() <= MAX_NAME && rule.params.len() <= MAX_PARAMS);
        assert!(!rule.about.is_empty());
        for param in rule.params {
            assert!(param.default.is_none_or(param.fits), "{}", param.name);
        }
    }
}

#[test]
fn wrong_rules_are_named_with_the_remedy() {
    let check = |spec: RuleSpec, expected: &str| assert_eq!(error(&spec), expected);
    check(
        RuleSpec::named("medain"),
        "rule \"medain\" is not known, there are fedavg, fedavg-clipped, median, trimmed-mean, krum, multi-krum, \
         centered-clipping, geometric-median",
    );
    check(
        RuleSpec::named("krum"),
        "rule krum needs num_malicious (updates of a round that may be bad)",
    );
    check(
        RuleSpec::named("krum").with("f", 2.0),
        "rule krum has no parameter \"f\", it has num_malicious",
    );
    check(
        RuleSpec::named("trimmed-mean").with("trim_ratio", 0.5),
        "trim_ratio of rule trimmed-mean is 0.5, allowed is 0 to below 0.5",
    );
    check(
        RuleSpec::named("krum").with("num_malicious", f64::NAN),
        "num_malicious of rule krum is NaN, allowed is a whole number of 0 to 100000",
    );
}

#[test]
fn impossible_rules_are_refused() {
    let trim = RuleSpec::named("trimmed-mean").with("num_trimmed", 3.0);
    assert_eq!(trim.check(7), Ok(()));
    assert_eq!(
        trim.check(6).expect_err("n <= 2k").to_string(),
        "rule trimmed-mean needs 7 updates, but a round may close with 6: raise min_vehicles or quorum, or let the \
         rule bear less"
    );
    let krum = RuleSpec::named("krum").with("num_malicious", 2.0);
    assert_eq!(krum.check(7), Ok(()));
    assert!(krum.check(6).is_err());
}

#[test]
fn the_median_of_an_even_number_lies_between() {
    for (values, expected) in [
        (vec![], 0.0),
        (vec![3.0], 3.0),
        (vec![4.0, 1.0], 2.5),
        (vec![9.0, 1.0, 5.0], 5.0),
    ] {
        assert!((median_of(values) - expected).abs() < 1e-12);
    }
}
