//! Matching of MQTT 3.1.1 topic filters (section 4.7 of the standard).

/// Whether a topic is matched by a filter.
///
/// `+` stands for one whole level, `#` at the end for all levels from there on, the parent included; a wildcard in
/// the first level does not match a topic that begins with `$`. A filter that is not well formed, an empty one, and an
/// empty topic match nothing; neither does a topic with a wildcard in it.
pub fn matches(filter: &str, topic: &str) -> bool {
    if filter.is_empty() || topic.is_empty() || topic.contains(['+', '#']) || !well_formed(filter) {
        return false;
    }
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// Wildcards stand alone in their level, and `#` in the last one.
fn well_formed(filter: &str) -> bool {
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let last = levels.peek().is_none();
        let wild = level.contains(['+', '#']);
        if wild && !(level == "+" || (level == "#" && last)) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn filters_follow_the_standard() {
        for (filter, topic) in [
            ("a/b", "a/b"),
            ("a/+", "a/b"),
            ("a/+", "a/"),
            ("+/+", "/b"),
            ("a/#", "a"),
            ("a/#", "a/b/c"),
            ("#", "a/b"),
            ("a/+/c", "a/b/c"),
            ("$hw/a", "$hw/a"),
            ("$hw/#", "$hw/a/b"),
            ("$hw/+", "$hw/a"),
            ("é/x", "é/x"),
            ("+/x", "é/x"),
            ("é/#", "é/日本/🚗"),
            ("a//b", "a//b"),
        ] {
            assert!(matches(filter, topic), "{filter} {topic}");
        }
        for (filter, topic) in [
            ("a/b", "a/c"),
            ("a/b", "a/B"),
            ("a/+", "a"),
            ("a/+", "a/b/c"),
            ("+", "a/b"),
            ("#", "$hw/a"),
            ("+/a", "$hw/a"),
            ("$hw/a", "$hw/b"),
            ("a/#/c", "a/b/c"),
            ("a#", "a#"),
            ("a+/b", "a+/b"),
            ("a/#", "ab"),
            ("é/x", "e/x"),
            ("", ""),
            ("#", ""),
            ("a/+", "a/+"),
        ] {
            assert!(!matches(filter, topic), "{filter} {topic}");
        }
    }
}
