use super::super::record::Expectation;
use super::super::sample::record;
use super::*;

/// The rest of each start tag and what stands in its place: tags of elements that are closed must balance.
fn check_balanced(html: &str) {
    const VOID: [&str; 3] = ["meta", "link", "!doctype"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some((_, after)) = rest.split_once('<') {
        let (tag, after) = after.split_once('>').expect("a tag ends");
        rest = after;
        let name = tag
            .split([' ', '\n', '/'])
            .find(|part| !part.is_empty())
            .unwrap_or("");
        if tag.starts_with('/') {
            assert_eq!(
                open.pop(),
                Some(name),
                "before {}",
                &rest[..rest.len().min(80)]
            );
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if name == "script" || name == "style" {
                let end = rest.find(&format!("</{name}>")).expect("it ends");
                rest = &rest[end..];
            }
        }
    }
    assert_eq!(open, [""; 0]);
}

fn data(html: &str) -> serde_json::Value {
    let (_, rest) = html.split_once("id=\"data\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    assert!(!json.contains('<'));
    serde_json::from_str(json).unwrap()
}

const IDS: [&str; 10] = [
    "accuracy-by-version",
    "accuracy-by-time",
    "accuracy-by-bytes",
    "accuracy-by-energy",
    "fleet-map",
    "stragglers",
    "rounds",
    "connected-share",
    "handovers",
    "contributions",
];

#[test]
fn one_run_has_every_drawing() {
    let html = html(&[record(1)]);
    check_balanced(&html);
    for id in IDS {
        assert_eq!(html.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
        assert!(html.contains(&format!("<title id=\"{id}-title\">")), "{id}");
    }
    let data = data(&html);
    assert_eq!(data["plots"].as_array().unwrap().len(), 4);
    assert_eq!(data["runs"][0]["seed"], 1);
    assert_eq!(data["runs"][0]["summary"]["fits"], 41_250);
}

#[test]
fn ids_are_unique_with_many_runs() {
    let mut runs: Vec<RunRecord> = (1..=12).map(record).collect();
    for run in &mut runs[6..] {
        run.name = "night".into();
    }
    let html = html(&runs);
    check_balanced(&html);
    let mut ids: Vec<&str> = html
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all);
    assert!(html.contains("id=\"fleet-map-8\"") && !html.contains("id=\"fleet-map-9\""));
    assert!(html.contains("rush-hour and night") && html.contains("night, 6 seeds"));
}

#[test]
fn nothing_is_fetched() {
    let html = html(&[record(1), record(2)]);
    // The one address is the name of SVG, which nobody asks for.
    let rest = html.replace("http://www.w3.org/2000/svg", "");
    for part in [
        "http:", "https:", "//cdn", "src=", "@import", "url(", "fetch(",
    ] {
        assert!(!rest.contains(part), "{part}");
    }
}

#[test]
fn a_name_cannot_break_out() {
    let evil = "</script><img src=x onerror=alert(1)>\"'{{body}}";
    let mut run = record(1);
    run.name = evil.into();
    run.scenario = evil.into();
    run.summary.model_digest = evil.into();
    run.units[0].name = evil.into();
    run.vehicles[0].name = evil.into();
    run.expectations.push(Expectation {
        name: evil.into(),
        wanted: evil.into(),
        got: evil.into(),
        holds: true,
    });
    for html in [html(&[run.clone()]), html(&[run, record(2)])] {
        check_balanced(&html);
        assert!(!html.contains("<img"));
        assert_eq!(html.matches("<script").count(), 2);
        data(&html);
    }
}

#[test]
fn an_empty_record_is_shown() {
    let html = html(&[RunRecord::default()]);
    check_balanced(&html);
    assert!(html.contains("No version was tested."));
    check_balanced(&super::html(&[]));
    let mut run = record(1);
    run.curve.truncate(1);
    run.rounds.truncate(1);
    run.vehicles.truncate(1);
    run.units.clear();
    let html = super::html(&[run]);
    check_balanced(&html);
    assert!(!html.contains("NaN") && !html.contains("inf "));
}

#[test]
fn equal_records_give_equal_pages() {
    assert!(html(&[record(5)]) == html(&[record(5)]));
}
