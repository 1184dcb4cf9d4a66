//! One sequence's walk through its play.

use contract::TokenId;
use contract::sampling::{SamplingParams, TokenLogprobs};

use backend::step::SeatFault;

use crate::script::{EOS, End, Play};

/// What a sequence gives when it is sampled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Token {
        token: TokenId,
        logprobs: Option<TokenLogprobs>,
        done: bool,
    },
    /// The sequence hangs: it never says anything again, and never ends by itself.
    Nothing,
    Fault(SeatFault),
}

/// Where a sequence is in its play.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    play: Play,
    sampling: SamplingParams,
    vocab: u32,
    /// Tokens generated so far, before any preemption too.
    generated: u32,
    /// Where the script goes on; beyond its last token its end comes, or its start again.
    next: usize,
}

impl Walk {
    /// `generated`: what was said before a preemption.
    pub fn new(play: Play, sampling: SamplingParams, vocab: u32, generated: &[TokenId]) -> Self {
        let mut walk = Self { play, sampling, vocab, generated: 0, next: 0 };
        generated.iter().for_each(|&token| walk.advance(token));
        walk
    }

    pub fn play(&self) -> &Play {
        &self.play
    }

    /// The next token. `mask`: what the grammar allows.
    pub fn say(&mut self, mask: Option<&[u32]>) -> Said {
        let (token, at) = match self.play.tokens.get(self.next) {
            Some(&token) => (token, Some(self.next)),
            None => match self.after_the_last() {
                Ok(next) => next,
                Err(said) => return said,
            },
        };
        if mask.is_some_and(|mask| !allows(mask, token)) {
            return Said::Fault(SeatFault::ScriptViolatesGrammar { position: self.generated });
        }
        self.said(token, at)
    }

    /// A token that the host writes in the model's place.
    pub fn forced(&mut self, token: TokenId) -> Said {
        self.said(token, None)
    }

    fn said(&mut self, token: TokenId, at: Option<usize>) -> Said {
        let may_stop = self.generated >= self.sampling.min_tokens;
        self.advance(token);
        Said::Token {
            token,
            logprobs: self.sampling.logprobs.map(|top| self.logprobs(token, at, usize::from(top))),
            done: may_stop && self.sampling.stop_tokens.contains(&token),
        }
    }

    /// A forced token stands for the script's own next token of that kind: a model whose thinking is closed for it does
    /// not close it again. Single bytes stand for nothing, as every text is full of them.
    fn advance(&mut self, token: TokenId) {
        self.generated += 1;
        let tokens = &self.play.tokens;
        let own = self.next.checked_rem(tokens.len()).map(|at| tokens[at]);
        if own == Some(token) {
            self.next += 1;
        } else if token > EOS
            && let Some(rest) = tokens.get(self.next..)
            && let Some(ahead) = rest.iter().position(|&other| other == token)
        {
            self.next += ahead + 1;
        }
    }

    /// The end as the script has it, or the script from its start where the end may not come yet.
    fn after_the_last(&self) -> Result<(TokenId, Option<usize>), Said> {
        let fault = match self.play.end {
            End::Error => SeatFault::Error("the script says `then: error`".into()),
            End::Abort => SeatFault::Abort("the script says `then: abort`".into()),
            End::Hang => return Err(Said::Nothing),
            // The end of sequence is no stop token when the request ignores it.
            End::Stop | End::Length if self.must_go_on() => {
                let Some(at) = self.next.checked_rem(self.play.tokens.len()) else {
                    let reason = "the script has no token to repeat, and the request does not let it end".into();
                    return Err(Said::Fault(SeatFault::Error(reason)));
                };
                return Ok((self.play.tokens[at], Some(at)));
            }
            End::Stop => return Ok((EOS, None)),
            End::Length => SeatFault::Length,
        };
        Err(Said::Fault(fault))
    }

    fn must_go_on(&self) -> bool {
        !self.sampling.stop_tokens.contains(&EOS) || self.generated < self.sampling.min_tokens
    }

    /// Logprobs of a token: the script's own numbers, and what they leave of the probability spread evenly over the
    /// other tokens, lowest ids first.
    fn logprobs(&self, token: TokenId, at: Option<usize>, wanted: usize) -> TokenLogprobs {
        let scripted = at.and_then(|i| self.play.top.get(i));
        let logprob = at.and_then(|i| self.play.logprobs.get(i).copied());
        let logprob =
            logprob.or_else(|| scripted.and_then(|top| top.iter().find(|(t, _)| *t == token).map(|(_, l)| *l)));
        let logprob = logprob.unwrap_or(0.0);
        let mut top = vec![(token, logprob)];
        for &(other, l) in scripted.into_iter().flatten() {
            if top.iter().all(|(t, _)| *t != other) {
                top.push((other, l));
            }
        }
        let named = top.len() as u32;
        let rest = 1.0 - top.iter().map(|(_, l)| f64::from(*l).exp()).sum::<f64>();
        let each = (rest.max(0.0) / f64::from(self.vocab.saturating_sub(named).max(1))).ln() as f32;
        let fill = (0..self.vocab).filter(|t| top.iter().all(|(named, _)| named != t)).map(|t| (t, each));
        let fill = fill.take(wanted.saturating_sub(top.len())).collect::<Vec<_>>();
        top.extend(fill);
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        top.truncate(wanted);
        let rank = top.iter().filter(|(_, l)| *l > logprob).count() as u32 + 1;
        TokenLogprobs { token, logprob, rank, top }
    }
}

fn allows(mask: &[u32], token: TokenId) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    /// Says up to `limit` tokens; the last entry is what was not a token.
    fn run(json: &str, sampling: SamplingParams, limit: usize) -> (String, Option<Said>) {
        let script = Script::from_json(json).unwrap();
        let vocabulary = script.vocabulary();
        let mut walk = Walk::new(script.responses[0].plays[0].clone(), sampling, script.vocab_size(), &[]);
        let mut text = String::new();
        for _ in 0..limit {
            match walk.say(None) {
                Said::Token { token: EOS, .. } => text.push('$'),
                Said::Token { token, .. } if token < EOS => text.push(token as u8 as char),
                Said::Token { token, .. } => {
                    text += std::str::from_utf8(&vocabulary[(token - EOS - 1) as usize].0).unwrap();
                }
                other => return (text, Some(other)),
            }
        }
        (text, None)
    }

    fn stops() -> SamplingParams {
        SamplingParams { stop_tokens: vec![EOS], ..Default::default() }
    }

    #[test]
    fn ends_come_after_the_last_token() {
        let at_end = |rest: &str, sampling, limit| {
            run(&format!(r#"{{"responses":[{{"tokens":["a","b"]{rest}}}]}}"#), sampling, limit)
        };
        assert_eq!(at_end("", stops(), 3), ("ab$".into(), None));
        let length = Some(Said::Fault(SeatFault::Length));
        assert_eq!(at_end(r#","finish":"length""#, stops(), 3), ("ab".into(), length));
        assert_eq!(at_end(r#","then":"hang""#, stops(), 3), ("ab".into(), Some(Said::Nothing)));
        assert!(matches!(at_end(r#","then":"error""#, stops(), 3).1, Some(Said::Fault(SeatFault::Error(_)))));
        assert!(matches!(at_end(r#","then":"abort""#, stops(), 3).1, Some(Said::Fault(SeatFault::Abort(_)))));
    }

    /// `ignore_eos` and an unreached `min_tokens` repeat the script.
    #[test]
    fn a_script_that_must_go_on_repeats() {
        let json = r#"{"responses":[{"tokens":["a","b"]}]}"#;
        assert_eq!(run(json, SamplingParams::default(), 5).0, "ababa");
        // min_tokens 3: the end is forbidden before three tokens were generated.
        assert_eq!(run(json, SamplingParams { min_tokens: 3, ..stops() }, 4).0, "aba$");
        let empty = run(r#"{"responses":[{"tokens":[]}]}"#, SamplingParams::default(), 1);
        assert!(matches!(empty.1, Some(Said::Fault(SeatFault::Error(_)))));
    }

    #[test]
    fn a_stop_token_of_the_request_ends_it() {
        let script = Script::from_json(r#"{"responses":[{"tokens":["a","b"]}]}"#).unwrap();
        let sampling = SamplingParams { stop_tokens: vec![EOS, 258], ..Default::default() };
        let mut walk = Walk::new(script.responses[0].plays[0].clone(), sampling, 259, &[]);
        let mut done = || matches!(walk.say(None), Said::Token { done: true, .. });
        assert_eq!([done(), done()], [false, true]);
    }

    #[test]
    fn a_forbidden_token_is_a_violation_with_its_position() {
        let script = Script::from_json(r#"{"responses":[{"text":"ab"}]}"#).unwrap();
        let mut walk = Walk::new(script.responses[0].plays[0].clone(), stops(), 257, &[]);
        let mut only_a = vec![0u32; 9];
        only_a[97 / 32] = 1 << (97 % 32);
        assert!(matches!(walk.say(Some(&only_a)), Said::Token { token: 97, .. }));
        let violation = Said::Fault(SeatFault::ScriptViolatesGrammar { position: 1 });
        assert_eq!(walk.say(Some(&only_a)), violation);
    }

    /// The close of a spent budget stands for the script's own: what the script would still have thought is gone. The
    /// same after a preemption.
    #[test]
    fn forced_tokens_stand_for_the_scripts_own() {
        let script =
            Script::from_json(r#"{"responses":[{"tokens":["a","b","</t>","x"],"special":["</t>"]}]}"#).unwrap();
        let play = script.responses[0].plays[0].clone();
        let (close, x) = (play.tokens[2], play.tokens[3]);
        let mut walk = Walk::new(play.clone(), stops(), script.vocab_size(), &[]);
        let token = |said| match said {
            Said::Token { token, .. } => token,
            other => panic!("not a token: {other:?}"),
        };
        assert_eq!(token(walk.say(None)), play.tokens[0]);
        assert_eq!([token(walk.forced(close)), token(walk.forced(10)), token(walk.say(None))], [close, 10, x]);
        let mut resumed = Walk::new(play.clone(), stops(), script.vocab_size(), &[play.tokens[0], close, 10]);
        assert_eq!([token(resumed.say(None)), token(resumed.say(None))], [x, EOS]);
    }

    /// The script's own numbers come back; the rest of the probability is spread over the other tokens.
    #[test]
    fn logprobs_are_the_scripts() {
        let json = r#"{"responses":[{"text":"ab","logprobs":[-0.1,-2.0],"top":[[],[["c",-0.2]]]}]}"#;
        let script = Script::from_json(json).unwrap();
        let sampling = SamplingParams { logprobs: Some(2), ..stops() };
        let mut walk = Walk::new(script.responses[0].plays[0].clone(), sampling, script.vocab_size(), &[]);
        let mut next = || match walk.say(None) {
            Said::Token { logprobs: Some(logprobs), .. } => logprobs,
            other => panic!("no logprobs: {other:?}"),
        };
        let first = next();
        assert_eq!((first.token, first.logprob, first.top[0]), (97, -0.1, (97, -0.1)));
        assert_eq!(first.top[1].0, 0);
        assert!((f64::from(first.top[1].1).exp() - (1.0 - (-0.1f64).exp()) / 257.0).abs() < 1e-7);
        assert_eq!(next().top, [(257, -0.2), (97 + 1, -2.0)]);
        let end = next();
        assert_eq!((end.token, end.logprob, end.top[0]), (EOS, 0.0, (EOS, 0.0)));
        assert_eq!(end.top[1].1, f32::NEG_INFINITY);
    }
}
