//! `strftime_now`: the request's own time, formatted as Python does with English names.

/// A point in time as the wall shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    year: i32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Moment {
    /// RFC 3339; the offset says where the wall stands and is not applied, a fraction of a second is dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let field = |range: std::ops::Range<usize>| text.get(range)?.parse::<u32>().ok();
        let separators = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
        if !separators.iter().all(|&(at, mark)| text.get(at..at + 1) == Some(mark)) {
            return None;
        }
        let moment = Self {
            year: text.get(0..4)?.parse().ok()?,
            month: field(5..7)?,
            day: field(8..10)?,
            hour: field(11..13)?,
            minute: field(14..16)?,
            second: field(17..19)?,
        };
        let fits = (1..=12).contains(&moment.month)
            && (1..=31).contains(&moment.day)
            && moment.hour < 24
            && moment.minute < 60
            && moment.second <= 60;
        fits.then_some(moment)
    }

    fn days_before_month(&self) -> u32 {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][self.month as usize - 1];
        before + u32::from(leap && self.month > 2)
    }

    fn day_of_year(&self) -> u32 {
        self.days_before_month() + self.day
    }

    /// 0 is Sunday; counted from the year 1, whose first day was a Monday in this calendar.
    fn weekday(&self) -> usize {
        let years = i64::from(self.year) - 1;
        let days = years * 365 + years / 4 - years / 100 + years / 400 + i64::from(self.day_of_year());
        days.rem_euclid(7) as usize
    }

    /// An unknown code stays as it is. The time has no zone, as in Python, so `%z` and `%Z` are empty.
    pub fn format(&self, format: &str) -> String {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let Some(mut code) = chars.next() else {
                out.push('%');
                break;
            };
            let bare = code == '-';
            if bare {
                let Some(next) = chars.next() else {
                    out.push_str("%-");
                    break;
                };
                code = next;
            }
            self.code(code, bare, &mut out);
        }
        out
    }

    fn code(&self, code: char, bare: bool, out: &mut String) {
        let month = MONTHS[self.month as usize - 1];
        let day = DAYS[self.weekday()];
        let twelve = (self.hour + 11) % 12 + 1;
        let number = match code {
            'd' => (self.day, 2),
            'm' => (self.month, 2),
            'H' => (self.hour, 2),
            'I' => (twelve, 2),
            'M' => (self.minute, 2),
            'S' => (self.second, 2),
            'j' => (self.day_of_year(), 3),
            'y' => (self.year.rem_euclid(100) as u32, 2),
            'f' => (0, 6),
            _ => {
                match code {
                    'Y' => out.push_str(&self.year.to_string()),
                    'B' => out.push_str(month),
                    'b' | 'h' => out.push_str(&month[..3]),
                    'A' => out.push_str(day),
                    'a' => out.push_str(&day[..3]),
                    'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
                    'e' => out.push_str(&format!("{:>2}", self.day)),
                    'w' => out.push_str(&self.weekday().to_string()),
                    'u' => out.push_str(&((self.weekday() + 6) % 7 + 1).to_string()),
                    'F' => out.push_str(&self.format("%Y-%m-%d")),
                    'T' | 'X' => out.push_str(&self.format("%H:%M:%S")),
                    'R' => out.push_str(&self.format("%H:%M")),
                    'D' | 'x' => out.push_str(&self.format("%m/%d/%y")),
                    'c' => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")),
                    'z' | 'Z' => {}
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    '%' => out.push('%'),
                    other => {
                        out.push_str(if bare { "%-" } else { "%" });
                        out.push(other);
                    }
                }
                return;
            }
        };
        let width = if bare { 1 } else { number.1 };
        out.push_str(&format!("{:0width$}", number.0));
    }
}

#[cfg(test)]
mod tests {
    use super::Moment;

    #[test]
    fn formats_like_python() {
        let cases = [
            ("2025-02-03T09:05:07", "%A, %B %d %Y %H:%M", "Monday, February 03 2025 09:05"),
            ("2024-12-31T23:59:60+02:00", "%j %a %-d %b %y %I%p %%", "366 Tue 31 Dec 24 11PM %"),
            ("2000-03-01T00:00:00Z", "%F %T %w %u %-H %Q", "2000-03-01 00:00:00 3 3 0 %Q"),
            ("2026-11-30T12:00:00.25Z", "%c%", "Mon Nov 30 12:00:00 2026%"),
        ];
        for (now, format, expected) in cases {
            assert_eq!(Moment::parse(now).expect("valid").format(format), expected);
        }
    }

    #[test]
    fn bad_times_are_refused() {
        for text in ["", "2025-13-01T00:00:00", "2025-01-01", "2025-01-01T24:00:00Z", "x025-01-01T00:00:00", "é"] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
