//! The directives with which a source begins: `enable f16;`, `enable subgroups;`.

use super::bounds::without_comments;

/// The extension that naga has without its directive, which it does not take.
const SUBGROUPS: &str = "subgroups";

/// What a source enables.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Enabled {
    pub subgroups: bool,
    pub halves: bool,
}

/// Returns the source with spaces in the place of `enable subgroups;`, and what it enables. All else stays in its place.
pub(super) fn without_subgroups(source: &str) -> (String, Enabled) {
    let text = without_comments(source); // as many bytes
    let (mut blanks, mut at, mut halves) = (Vec::new(), 0, false);
    // Directives come before everything else.
    while let Some((start, end)) = next_directive(&text, at) {
        at = end + 1;
        let Some(list) = text[start..end].strip_prefix("enable") else { continue };
        let before = blanks.len();
        let names: Vec<&str> = list.split(',').collect();
        let mut from = end - list.len();
        for (i, name) in names.iter().enumerate() {
            // The comma after the name, or after the last one, the comma before it.
            let to = from + name.len() + usize::from(i + 1 < names.len());
            if name.trim() == SUBGROUPS {
                let spaces = name.len() - name.trim_start().len();
                let first = if to == end && i > 0 { from - 1 } else { from + spaces };
                blanks.push(first..to);
            }
            halves |= name.trim() == "f16";
            from = to;
        }
        let named = names.iter().filter(|name| name.trim() == SUBGROUPS).count();
        if named == names.len() {
            blanks.truncate(before);
            blanks.push(start..end + 1);
        }
    }
    let mut bytes = source.as_bytes().to_vec();
    for i in blanks.iter().flat_map(Clone::clone) {
        if bytes[i] != b'\n' {
            bytes[i] = b' ';
        }
    }
    // Only whole characters were replaced: directives are ASCII, and so are the ends of comments between them.
    let blanked = String::from_utf8_lossy(&bytes).into_owned();
    (blanked, Enabled { subgroups: !blanks.is_empty(), halves })
}

/// Returns where the next directive from a byte on begins and where its semicolon is, if one comes next.
fn next_directive(text: &str, from: usize) -> Option<(usize, usize)> {
    let rest = text.get(from..)?;
    let start = from + rest.len() - rest.trim_start().len();
    let directive = ["enable", "requires", "diagnostic"].into_iter().any(|keyword| {
        let after = text[start..].strip_prefix(keyword);
        after.is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    });
    let end = directive.then(|| text[start..].find(';')).flatten()?;
    Some((start, start + end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_directive_of_subgroups_is_blanked() {
        let same = |source: &str| {
            let halves = source.contains("f16");
            assert_eq!(without_subgroups(source), (source.to_string(), Enabled { subgroups: false, halves }));
        };
        same("");
        same("enable f16;\nfn enable_subgroups() {}");
        same("// enable subgroups;\nfn f() {}");
        same("fn f() {}\nenable subgroups;");
        same("enable subgroups");
        same("enabled subgroups;");
        let blanked = |source: &str, expected: &str| {
            assert_eq!(source.len(), expected.len());
            let halves = source.contains("f16");
            assert_eq!(without_subgroups(source), (expected.to_string(), Enabled { subgroups: true, halves }));
        };
        blanked("enable subgroups;\nfn f() {}", "                 \nfn f() {}");
        blanked(" // ü\n enable\n subgroups ;enable f16;", " // ü\n       \n            enable f16;");
        blanked("enable f16, subgroups;", "enable f16           ;");
        blanked("enable subgroups, f16;", "enable            f16;");
        blanked("enable f16,subgroups,f16;", "enable f16,          f16;");
        blanked("enable subgroups,subgroups;", "                           ");
        blanked("diagnostic(off, a);enable /* ü */ subgroups;x", &format!("diagnostic(off, a);{}x", " ".repeat(26)));
    }
}
