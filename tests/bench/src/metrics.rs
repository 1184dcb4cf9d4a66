//! `/metrics` as numbers: the difference of two readings is what happened between them.

/// One reading of the text format.
pub struct Reading(Vec<Sample>);

struct Sample {
    name: String,
    /// As written: `plugin="think",export="feed"`.
    labels: String,
    value: f64,
}

impl Reading {
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(Sample::parse).collect())
    }

    /// The sum over all series of a name that carry every one of these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let matches = |sample: &&Sample| sample.name == name && labels.iter().all(|label| sample.has(label));
        self.0.iter().filter(matches).map(|sample| sample.value).sum()
    }

    /// Every value of a label among the series of a name, once each, in the order of the text.
    pub fn values(&self, name: &str, label: &str) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.name == name) {
            if let Some(value) = sample.label(label)
                && values.iter().all(|known| known != value)
            {
                values.push(value.to_owned());
            }
        }
        values
    }

    /// The buckets of a histogram, summed over its series: upper bound and count up to it, in order.
    fn buckets(&self, name: &str, labels: &[(&str, &str)]) -> Vec<(f64, f64)> {
        let name = format!("{name}_bucket");
        let bounds = self.values(&name, "le");
        let count = |bound: &str| self.sum(&name, &[labels, &[("le", bound)]].concat());
        let parse = |bound: &str| if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap_or(f64::NAN) };
        bounds.iter().map(|bound| (parse(bound), count(bound))).collect()
    }
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, rest)) => (name, rest.strip_suffix('}')?),
            None => (series, ""),
        };
        Some(Self { name: name.to_owned(), labels: labels.to_owned(), value: value.parse().ok()? })
    }

    fn has(&self, (key, value): &(&str, &str)) -> bool {
        self.label(key) == Some(value)
    }

    fn label(&self, key: &str) -> Option<&str> {
        let parts = self.labels.split("\",").map(|part| part.trim_end_matches('"'));
        parts.filter_map(|part| part.split_once("=\"")).find(|(found, _)| *found == key).map(|(_, value)| value)
    }
}

/// What happened between two readings.
pub struct Between<'a>(pub &'a Reading, pub &'a Reading);

impl Between<'_> {
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.1.sum(name, labels) - self.0.sum(name, labels)
    }

    /// Seconds and number of observations of a histogram.
    pub fn total(&self, name: &str, labels: &[(&str, &str)]) -> (f64, f64) {
        (self.sum(&format!("{name}_sum"), labels), self.sum(&format!("{name}_count"), labels))
    }

    /// A quantile of a histogram's observations, linear within the bucket it falls into. `None` without observations.
    pub fn quantile(&self, name: &str, labels: &[(&str, &str)], q: f64) -> Option<f64> {
        let before = self.0.buckets(name, labels);
        let earlier = |bound: f64| before.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
        let counts: Vec<(f64, f64)> =
            self.1.buckets(name, labels).into_iter().map(|(bound, count)| (bound, count - earlier(bound))).collect();
        let all = counts.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
        let at = counts.iter().position(|(_, count)| *count >= q * all)?;
        let (low, below) = at.checked_sub(1).map_or((0.0, 0.0), |previous| counts[previous]);
        let (high, upto) = counts[at];
        // The last bucket has no upper bound: its lower one is all that is known.
        Some(if high.is_infinite() { low } else { low + (high - low) * (q * all - below) / (upto - below) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# TYPE t histogram\nt_sum{p=\"a\"} 1.0\nt_count{p=\"a\"} 1\nt_bucket{le=\"1.0\",p=\"a\"} 1\n\
        t_bucket{le=\"2.0\",p=\"a\"} 1\nt_bucket{le=\"+Inf\",p=\"a\"} 1\nn_total 4\n# EOF\n";
    const AFTER: &str = "t_sum{p=\"a\"} 16.0\nt_count{p=\"a\"} 11\nt_bucket{le=\"1.0\",p=\"a\"} 5\n\
        t_bucket{le=\"2.0\",p=\"a\"} 10\nt_bucket{le=\"+Inf\",p=\"a\"} 11\nn_total 9\nt_sum{p=\"b\"} 2.0\n";

    #[test]
    fn differences_and_quantiles() {
        let (before, after) = (Reading::parse(BEFORE), Reading::parse(AFTER));
        let between = Between(&before, &after);
        assert_eq!(between.sum("n_total", &[]), 5.0);
        assert_eq!(between.total("t", &[("p", "a")]), (15.0, 10.0));
        assert_eq!(between.sum("t_sum", &[]), 17.0);
        // 10 observations: 4 up to 1, 5 between 1 and 2, one above.
        assert_eq!(between.quantile("t", &[("p", "a")], 0.2), Some(0.5));
        assert_eq!(between.quantile("t", &[("p", "a")], 0.65), Some(1.5));
        assert_eq!(between.quantile("t", &[("p", "a")], 0.99), Some(2.0));
        assert_eq!(between.quantile("t", &[("p", "b")], 0.5), None);
    }
}
