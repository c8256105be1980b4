//! The verdicts that are expected.

use std::collections::BTreeMap;
use std::fmt::Write as _;

const TABLE: &str = include_str!("../expected.txt");

/// The expected verdict of each experiment, by hazard and algorithm: `safe`, `fenced`, `broken` or `-`.
pub fn expected() -> BTreeMap<(String, String), &'static str> {
    parse(TABLE)
}

fn parse(table: &str) -> BTreeMap<(String, String), &'static str> {
    let mut lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let algorithms: Vec<&str> =
        lines.next().map_or_else(Vec::new, |line| line.split_whitespace().collect());
    let mut all = BTreeMap::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let hazard = words.next().unwrap_or_default();
        for (algorithm, letter) in algorithms.iter().zip(words) {
            all.insert((hazard.to_owned(), (*algorithm).to_owned()), word(letter));
        }
    }
    all
}

fn word(letter: &str) -> &'static str {
    match letter {
        "s" => "safe",
        "f" => "fenced",
        "B" => "broken",
        "-" => "-",
        _ => "void",
    }
}

/// Verdicts in the format of the file of expected ones.
pub fn print(verdicts: &BTreeMap<(String, String), &str>) -> String {
    let mut text = String::from(
        "# What each experiment is expected to show: s safe, f fenced, B broken, - not applicable.\n\
         # The first line names the algorithms, in the order of the columns.\n\n",
    );
    let algorithms: Vec<&str> = crate::algorithms::all().iter().map(|info| info.id).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", algorithms.join(" "));
    for hazard in crate::hazards::all() {
        let _ = write!(text, "{:<20}", hazard.id);
        for algorithm in &algorithms {
            let key = (hazard.id.to_owned(), (*algorithm).to_owned());
            let letter = match verdicts.get(&key).copied() {
                Some("safe") => "s",
                Some("fenced") => "f",
                Some("broken") => "B",
                Some("-") => "-",
                _ => "?",
            };
            let _ = write!(text, " {letter}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_every_experiment_and_reads_as_it_is_printed() {
        let expected = expected();
        let experiments = crate::hazards::all().count() * crate::algorithms::all().len();
        assert_eq!(expected.len(), experiments);
        assert!(expected.values().all(|verdict| *verdict != "void"));
        assert_eq!(print(&expected), TABLE);
    }

    #[test]
    fn each_hazard_breaks_or_is_fenced_on_some_algorithm() {
        let expected = expected();
        for hazard in crate::hazards::all() {
            let harms = |((name, _), verdict): (&(String, String), &&str)| {
                name == hazard.id && matches!(*verdict, "broken" | "fenced")
            };
            // The only algorithm on a Cluster is tenure's.
            assert!(
                hazard.id == "slot-migration" || expected.iter().any(harms),
                "{} harms no algorithm",
                hazard.id
            );
        }
    }
}
