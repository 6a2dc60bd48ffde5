/* The round under the pointer: what was drafted beside what the target said. */
"use strict";

/* Thousandths as a percentage without its sign. */
const chanceText = (thousandths) => (thousandths === 0 ? "<0.1" : (thousandths / 10).toFixed(1));

class Panel {
  constructor(host, close) {
    this.host = host;
    this.hint = host.firstElementChild;
    this.close = element("button", { type: "button", class: "close", "aria-label": "let go of this round" }, "×");
    this.close.addEventListener("click", close);
    this.keep(false);
  }

  clear() {
    this.keep(false);
    this.host.replaceChildren(this.hint);
  }

  keep(held) {
    this.close.hidden = !held;
  }

  showFirst(made) {
    this.host.replaceChildren(this.close, this.token(made, 0),
      element("p", {}, "It comes with the prompt's own pass, before any round, and is the first anchor. It counts for no method."));
  }

  showRound(made, round, position) {
    const accepted = made.accepted[round];
    const slots = made.slotsOf(round);
    const cut = made.own(round) >= made.tokens.length;
    this.host.replaceChildren(this.close, this.token(made, position),
      element("h3", {}, `Round ${round + 1} of ${made.starts.length}`),
      element("p", {}, "accepted ", element("strong", {}, `${accepted} of ${slots.length}`),
        cut ? ", then the text ended: committed " : ", committed ", element("strong", {}, String(made.committed[round]))),
      this.table(made, round, slots, position), ...this.facts(made, slots, accepted, cut));
  }

  /* What the token pointed at is, with its id. */
  token(made, position) {
    const fate = made.fates[position];
    return element("p", { class: "token" }, this.piece(made.run, made.tokens[position], `t ${fate}`),
      element("small", {}, ` #${made.tokens[position]}, token ${position + 1}: `), FATES[fate]);
  }

  table(made, round, slots, position) {
    const names = [["slot"], ["drafted", "said"], ["%"], ["target", "said"], ["%"], ["rank"], ["tree"]];
    const head = element("tr", {}, ...names.map(([name, kind]) => element("th", { scope: "col", class: kind || "" }, name)));
    const anchor = element("tr", { class: "root" }, element("th", { scope: "row" }, "0"),
      element("td", { class: "said", colspan: "6" }, this.piece(made.run, made.tokens[made.starts[round]], "t f"), " the anchor"));
    const rows = slots.map((slot) => this.row(made.run, slot, position));
    const own = made.own(round);
    if (made.fates[own] === "b") // all drafts right: the target's token has no slot
      rows.push(element("tr", { class: own === position ? "here" : "" }, element("th", { scope: "row" }, "+"), element("td", { colspan: "2" }),
        element("td", { class: "said", colspan: "4" }, this.piece(made.run, made.tokens[own], "t b"))));
    return element("table", { class: "spaced" }, element("thead", {}, head), element("tbody", {}, anchor, ...rows));
  }

  row(run, slot, position) {
    const right = slot.rank === 1;
    const looks = slot.fate === "accepted" ? "t a" : right ? "t" : "t wrong";
    const own = right ? "=" : this.piece(run, slot.own, slot.fate === "miss" ? "t d" : "t");
    const nodes = slot.pop > run.mostNodes ? `>${count(run.mostNodes)}` : count(slot.pop);
    return element("tr", { class: slot.position === position ? `${slot.fate} here` : slot.fate },
      element("th", { scope: "row" }, String(slot.slot)),
      element("td", { class: "said" }, this.piece(run, slot.drafted, looks)), element("td", {}, chanceText(slot.chance)),
      element("td", { class: "said" }, own), element("td", {}, right ? "" : chanceText(slot.ownChance)),
      element("td", {}, count(slot.rank)), element("td", {}, nodes));
  }

  piece(run, token, looks) {
    const title = run.pieces[token] ? `${pieceText(run, token)}  #${token}` : "";
    return fillPiece(element("span", { class: looks, title }), run, token, false);
  }

  /* What the numbers of this round come to. */
  facts(made, slots, accepted, cut) {
    const miss = slots[accepted];
    const most = made.run.mostNodes;
    const facts = [];
    if (miss) {
      const deepest = slots.filter((slot) => slot.pop <= most).length;
      facts.push(`At slot ${miss.slot} the target's token was choice no. ${count(miss.rank)} of the drafter, at ${chanceText(miss.ownChance)} %.`,
        miss.pop > most ? `No tree of up to ${count(most)} nodes gets past it.`
          : `A tree of ${count(miss.pop)} nodes gets past it; one of ${count(most)} accepts ${deepest} from this anchor.`);
      if (accepted + 1 < slots.length) facts.push("Below the line: drafted in the same pass and thrown away; = would have been right.");
    } else facts.push(cut ? "The end of the text cut this round short." : "Every draft was right; the target adds a token of its own.");
    facts.push("%: the drafter's probability. rank: of the target's token in its slot. tree: nodes until a best-first tree holds the target's text up to here.");
    return facts.map((fact) => element("p", { class: "fact" }, fact));
  }
}
