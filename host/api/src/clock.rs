//! The wall clock, for `created` and for templates that print a date.

use std::time::{SystemTime, UNIX_EPOCH};

pub fn unix_seconds() -> u64 {
    // A clock before 1970 is a broken clock; 0 is as good an answer as any.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `seconds` since 1970 as RFC 3339 in UTC.
pub fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}+00:00", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Day number since 1970-01-01 to a date of the Gregorian calendar: 400-year eras of 146,097 days that begin on
/// 1 March, so that a leap day is the last day of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let cases = [
            (0, "1970-01-01T00:00:00+00:00"),
            (951_782_399, "2000-02-28T23:59:59+00:00"),
            (951_782_400, "2000-02-29T00:00:00+00:00"),
            (1_709_251_200, "2024-03-01T00:00:00+00:00"),
            (4_107_542_400, "2100-03-01T00:00:00+00:00"),
        ];
        for (seconds, text) in cases {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
