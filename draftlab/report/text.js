/* The texts: cards of tokens, what filters them, and how a reader moves through them. */
"use strict";

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children); // strings become text, never markup
  return made;
}

/* Fill `host` with a token's parts. Newlines and tabs are marked and, in running text, also there. */
function fillPiece(host, run, token, running = true) {
  pieceOf(run, token).forEach((part, i) => {
    if (i % 2) host.append(element("span", { class: GHOSTS.has(part) ? "m ghost" : "m" }, part));
    else for (const bit of (running ? part : part.replace(/[\n\t]/g, "")).split(/( +)/))
      if (bit) host.append(bit[0] === " " ? element("span", { class: "s" }, bit) : bit);
  });
  if (!run.pieces[token]) host.classList.add("id");
  return host;
}

const SVG = "http://www.w3.org/2000/svg";

/* A bar for each round, as high as what it committed: where in the text the drafter stumbles. */
function strip(completion) {
  const { committed, run } = completion;
  const step = Math.min(5, 260 / committed.length);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "strip");
  svg.setAttribute("width", Math.ceil(step * committed.length));
  svg.setAttribute("height", 20);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `tokens committed round by round: ${committed.slice(0, 60).join(" ")}`);
  committed.forEach((tokens, r) => {
    const bar = document.createElementNS(SVG, "rect");
    const height = Math.max(2, (20 * tokens) / run.block);
    for (const [name, value] of Object.entries({ x: r * step, y: 20 - height, width: Math.max(step - 1, 0.6), height }))
      bar.setAttribute(name, value);
    if (completion.accepted[r] === 0) bar.setAttribute("class", "one");
    svg.append(bar);
  });
  return svg;
}

class Texts {
  constructor(section, run) {
    this.run = run;
    this.panel = new Panel(section.querySelector(".panel"), () => this.letGo());
    this.cards = section.querySelector(".cards");
    this.count = section.querySelector(".count");
    this.completions = run.completions.map((raw) => new Completion(raw, run));
    this.nodes = new Map(this.completions.map((made) => [made, this.card(made)]));
    this.byText = new Map();
    this.held = null;
    this.hits = new Map();
    this.controls(section);
    this.listen();
    this.arrange();
    this.fillWhenNear();
  }

  card(made) {
    const amount = (n, what) => element("span", {}, `${count(n)} ${what}`);
    const head = element("header", {}, element("b", {}, `τ ${tau(made.tau)}`),
      element("span", { class: "name" }, made.id), element("span", {}, made.domain),
      amount(made.starts.length, "rounds"), amount(made.tokens.length, "tokens"), strip(made));
    const prompt = element("details", { class: "prompt" }, element("summary", {}, `prompt, ${count(made.prompt.length)} tokens`));
    prompt.addEventListener("toggle", () => {
      if (prompt.children.length === 1)
        prompt.append(element("div", {}, made.prompt.map((token) => pieceText(this.run, token)).join("")));
    });
    return element("article", { class: "card" }, head, prompt);
  }

  /* The tokens of one card, made when first needed. */
  fill(made) {
    const node = this.nodes.get(made);
    if (node.lastChild.className === "text") return node.lastChild;
    const text = element("div", { class: "text", role: "group", "aria-label": `text of ${made.id}; arrow keys move by token and by round` });
    made.tokens.forEach((token, i) => {
      const span = element("span", { class: `t ${made.fates[i]}` });
      span.dataset.i = i;
      text.append(fillPiece(span, this.run, token));
    });
    text.firstChild.tabIndex = 0;
    this.byText.set(text, made);
    node.append(text);
    this.mark(made, text);
    return text;
  }

  /* Cards near the screen first; the rest while nothing else happens, so that the browser finds all. */
  fillWhenNear() {
    const watch = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) if (isIntersecting) this.fill(target.made);
    }, { rootMargin: "1200px" });
    const waiting = [...this.completions];
    this.nodes.forEach((node, made) => {
      node.made = made;
      watch.observe(node);
    });
    const idle = window.requestIdleCallback || ((work) => setTimeout(() => work({ timeRemaining: () => 8 }), 30));
    const rest = (left) => {
      while (waiting.length && left.timeRemaining() > 2) this.fill(waiting.shift());
      if (waiting.length) idle(rest);
    };
    idle(rest);
    window.addEventListener("beforeprint", () => {
      this.letGo();
      this.completions.forEach((made) => this.fill(made));
    });
  }

  controls(section) {
    const get = (name) => section.querySelector(`.${name}`);
    [this.domain, this.order, this.term] = [get("domain"), get("order"), get("find")];
    for (const name of new Set(this.completions.map((made) => made.domain))) this.domain.append(element("option", { value: name }, name));
    for (const control of [this.domain, this.order]) control.addEventListener("change", () => this.arrange());
    let soon;
    this.term.addEventListener("input", () => {
      clearTimeout(soon);
      soon = setTimeout(() => this.arrange(), 120);
    });
    get("spaces").addEventListener("change", (event) => this.cards.classList.toggle("spaced", event.target.checked));
    get("filters").hidden = false;
  }

  /* Show the completions that the controls ask for, in their order. */
  arrange() {
    const term = this.term.value.toLowerCase();
    this.hits.clear();
    const shown = this.completions.filter((made) => {
      if (this.domain.value && made.domain !== this.domain.value) return false;
      if (!term) return true;
      const hits = made.find(term);
      this.hits.set(made, hits);
      return hits.size > 0 || made.id.toLowerCase().includes(term);
    });
    const sign = { run: 0, worst: 1, best: -1 }[this.order.value];
    shown.sort((one, other) => sign * (one.tau - other.tau) || one.number - other.number);
    this.cards.replaceChildren(...shown.map((made) => this.nodes.get(made)));
    this.byText.forEach((made, text) => this.mark(made, text));
    const rounds = shown.reduce((sum, made) => sum + made.starts.length, 0);
    const tokens = shown.reduce((sum, made) => sum + made.tokens.length - 1, 0);
    this.count.textContent = shown.length ? `${shown.length} of ${this.completions.length} completions, τ ${tau(tokens / rounds)}` : "no completion matches";
  }

  /* Underline what the search found in one text. */
  mark(made, text) {
    for (const span of text.querySelectorAll(".hit")) span.classList.remove("hit");
    for (const i of this.hits.get(made) || []) text.children[i].classList.add("hit");
  }

  listen() {
    const at = (event) => {
      const span = event.target.closest(".text > .t");
      return span && { text: span.parentNode, i: Number(span.dataset.i) };
    };
    this.cards.addEventListener("mouseover", (event) => {
      const place = at(event);
      if (place && !this.held) this.show(place.text, place.i);
    });
    this.cards.addEventListener("click", (event) => {
      const place = at(event);
      if (place && String(getSelection()) === "") this.hold(place.text, place.i);
    });
    this.cards.addEventListener("focusin", (event) => {
      const place = at(event);
      if (place) this.hold(place.text, place.i, false);
    });
    this.cards.addEventListener("keydown", (event) => this.move(event));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.letGo());
  }

  move(event) {
    if (!this.held || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const { text, i } = this.held;
    const made = this.byText.get(text);
    const last = made.tokens.length - 1;
    const round = made.roundOf[i];
    const to = {
      ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: last,
      ArrowDown: round + 1 < made.starts.length ? made.starts[round + 1] + 1 : last,
      ArrowUp: round > 0 ? made.starts[round - 1] + 1 : 0,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.hold(text, Math.min(Math.max(to, 0), last));
  }

  /* Keep a round in the panel until another is chosen or it is let go. */
  hold(text, i, focus = true) {
    if (this.held) this.held.text.children[this.held.i].classList.remove("here");
    const span = text.children[i];
    for (const other of text.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    span.tabIndex = 0;
    span.setAttribute("aria-label", `${span.textContent}: ${FATES[this.byText.get(text).fates[i]]}`);
    this.held = { text, i };
    this.show(text, i);
    span.classList.add("here");
    if (focus && document.activeElement !== span) span.focus({ preventScroll: false });
    this.panel.keep(true);
  }

  letGo() {
    if (this.held) this.held.text.children[this.held.i].classList.remove("here");
    if (this.held && document.activeElement === this.held.text.children[this.held.i]) document.activeElement.blur();
    this.held = null;
    this.outline(null);
    this.panel.clear();
  }

  show(text, i) {
    const made = this.byText.get(text);
    const round = made.roundOf[i];
    this.outline(text, made, round);
    if (round < 0) this.panel.showFirst(made);
    else this.panel.showRound(made, round, i);
  }

  /* Draw a line around the round's tokens and its anchor. */
  outline(text, made, round) {
    for (const span of this.outlined || []) span.classList.remove("now", "root");
    this.outlined = [];
    if (!text || round < 0) return;
    const end = Math.min(made.own(round), made.tokens.length - 1);
    this.outlined = [...text.children].slice(made.starts[round], end + 1);
    this.outlined.forEach((span, k) => span.classList.add(k ? "now" : "root"));
  }
}
