/* One completion: which round each token came from, and what that round drafted. No DOM here. */
"use strict";

const FATES = {
  a: "accepted draft", d: "the target's own token, where the draft was wrong",
  b: "the target's own token, after a draft that was right throughout", f: "first token, given before the first round",
};

class Completion {
  constructor(raw, run) {
    Object.assign(this, raw);
    this.run = run;
    this.committed = this.starts.map((start, r) => (this.starts[r + 1] ?? raw.tokens.length - 1) - start);
    this.tau = (raw.tokens.length - 1) / this.starts.length;
    this.fates = ["f"];
    this.roundOf = [-1];
    this.offsets = [];
    let offset = 0;
    this.starts.forEach((start, r) => {
      this.offsets.push(offset);
      offset += this.room(r);
      for (let k = 0; k < this.accepted[r]; k++) this.fates.push("a");
      if (this.own(r) < raw.tokens.length) this.fates.push(this.accepted[r] === run.slots ? "b" : "d");
      while (this.roundOf.length < this.fates.length) this.roundOf.push(r);
    });
  }

  /* Slots of a round that the completion reaches. */
  room(r) {
    return Math.min(this.run.slots, this.tokens.length - 1 - this.starts[r]);
  }

  /* Where the round's own token of the target stands; past the end for a round that was cut. */
  own(r) {
    return this.starts[r] + this.accepted[r] + 1;
  }

  /* The slots of a round, first to last. */
  slotsOf(r) {
    return Array.from({ length: this.room(r) }, (_, d) => {
      const at = this.offsets[r] + d;
      return {
        slot: d + 1, position: this.starts[r] + d + 1, drafted: this.drafted[at], chance: this.draftedChance[at],
        own: this.tokens[this.starts[r] + d + 1], rank: this.rank[at], ownChance: this.ownChance[at], pop: this.pop[at],
        fate: d < this.accepted[r] ? "accepted" : d === this.accepted[r] ? "miss" : "late",
      };
    });
  }

  /* The text as it reads, with the place where each token begins; made once, for searching. */
  plain() {
    if (!this.reading) {
      const begins = [];
      let text = "";
      for (const token of this.tokens) {
        begins.push(text.length);
        text += pieceText(this.run, token).toLowerCase();
      }
      this.reading = { text, begins };
    }
    return this.reading;
  }

  /* Tokens that a search term touches. */
  find(term) {
    const { text, begins } = this.plain();
    const found = new Set();
    let i = 0;
    for (let from = text.indexOf(term); from >= 0; from = text.indexOf(term, from + term.length)) {
      while (begins[i + 1] <= from) i++;
      for (let k = i; begins[k] < from + term.length; k++) found.add(k);
    }
    return found;
  }
}

/* Plain and marked parts of a token in turn; one without a piece is its number. */
const pieceOf = (run, token) => run.pieces[token] || [`#${token}`];

/* How a token reads: marks of what is also there (newline, tab) left out, codes kept. */
function pieceText(run, token) {
  return pieceOf(run, token).filter((part, i) => i % 2 === 0 || !GHOSTS.has(part)).join("");
}
const GHOSTS = new Set(["↵", "→"]);
