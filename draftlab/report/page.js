/* Unpack the data, draw, and let the reader choose light or dark. */
"use strict";

async function unpack(node) {
  const packed = Uint8Array.from(atob(node.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function chooseTheme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;
  const set = (name) => {
    root.dataset.theme = name;
    button.textContent = name === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", `switch to ${button.textContent}`);
    document.dispatchEvent(new Event("themechange"));
  };
  const preferred = () => chosen || (system.matches ? "dark" : "light");
  button.addEventListener("click", () => {
    chosen = preferred() === "dark" ? "light" : "dark";
    set(chosen);
  });
  system.addEventListener("change", () => set(preferred()));
  window.addEventListener("beforeprint", () => set("light"));
  window.addEventListener("afterprint", () => set(preferred()));
  set(preferred());
}

async function start() {
  chooseTheme();
  const { runs } = await unpack(document.getElementById("data"));
  document.querySelectorAll("main > article").forEach((article, i) => {
    drawCharts(article, [runs[i]]);
    const texts = article.querySelector(".texts");
    if (runs[i].completions.length) new Texts(texts, runs[i]);
  });
  document.documentElement.dataset.ready = "";
}

start().catch((error) => {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = `Charts and texts could not be drawn (${error.message}). The tables are complete; a browser from 2023 or later draws the rest.`;
  document.querySelector("main").prepend(note);
});
