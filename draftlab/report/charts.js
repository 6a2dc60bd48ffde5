/* Charts of runs. Every function takes a list of runs and draws one line or bar each. */
"use strict";

/* A colour of the style sheet as the canvas understands it. */
const probe = document.createElement("i");
function theme(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
const tau = (value) => (value == null ? "" : value.toFixed(3));
const share = (value) => (value == null ? "" : (100 * value).toFixed(1) + " %");
const count = (value) => (value == null ? "" : value.toLocaleString("en"));

function axis(label, more) {
  return {
    stroke: theme("--muted"), label, labelSize: 20, labelGap: 0, labelFont: "13px system-ui, sans-serif",
    size: 34, font: "12px system-ui, sans-serif", grid: { stroke: theme("--line"), width: 1 },
    ticks: { stroke: theme("--line"), width: 1, size: 5 }, ...more,
  };
}

function line(label, colour, dash, more) {
  return { label, stroke: theme(colour), width: 2, dash, points: { show: false }, ...more };
}

/* Names at the right end of each line, so that no legend is needed to read the chart. */
function nameLines(u) {
  const { ctx } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  u.series.forEach((series, i) => {
    if (!series.named || !series.show) return;
    const at = series.namedAt == null ? u.data[0].length - 1 : series.namedAt;
    const y = u.data[i][at];
    if (y == null) return;
    ctx.fillStyle = series.stroke();
    ctx.textAlign = series.namedAt == null ? "right" : "left";
    const up = series.named === "below" ? 16 : -8;
    ctx.fillText(series.label, u.valToPos(u.data[0][at], "x", true) + (series.namedAt == null ? -6 : 6) * ratio,
      u.valToPos(y, "y", true) + up * ratio);
  });
  ctx.restore();
}

function draw(host, data, { x, y, series, scales, hooks, bands }) {
  const chart = new uPlot({
    width: host.clientWidth, height: 280, padding: [14, 22, 0, 4],
    scales, axes: [x, y], series, bands, cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    legend: { markers: { stroke: (u, i) => u.series[i].stroke(), dash: (u, i) => (u.series[i].dash ? "dashed" : "solid") } },
    hooks: { draw: [nameLines, ...(hooks || [])] },
  }, data, host);
  return chart;
}

/* The band below 1: what a target does alone. */
function floorAtOne(u) {
  const { ctx } = u;
  const top = u.valToPos(1, "y", true);
  ctx.save();
  ctx.fillStyle = theme("--floor");
  ctx.globalCompositeOperation = "destination-over";
  ctx.fillRect(u.bbox.left, top, u.bbox.width, u.bbox.top + u.bbox.height - top);
  ctx.restore();
}

const fromZero = (u, low, high) => [0, Math.max(high, 1) * 1.12];

function drawBudgets(host, runs) {
  const most = Math.max(...runs.map((run) => run.treeTau.length));
  const xs = Array.from({ length: most }, (_, i) => i + 1);
  const powers = xs.filter((b) => (b & (b - 1)) === 0);
  const many = runs.length > 1;
  const lines = runs.flatMap((run) => [
    line(many ? `${run.name}, tree` : "tree", "--blue", undefined, { named: "above", value: (u, v) => tau(v) }),
    line(many ? `${run.name}, chain` : "chain", "--rust", [7, 5], { named: "above", namedAt: 0, value: (u, v) => tau(v) }),
  ]);
  const columns = runs.flatMap((run) => [run.treeTau, xs.map(() => run.tau)]);
  return draw(host, [xs, ...columns], {
    scales: { x: { time: false, distr: 3, log: 2, range: () => [1, most] }, y: { range: fromZero } },
    x: axis("budget: nodes below the root", { splits: () => powers, values: (u, v) => v.map(String) }),
    y: axis("τ: tokens per pass", { size: 46 }),
    series: [{ label: "budget", value: (u, v) => count(v) }, ...lines],
    hooks: [floorAtOne],
  });
}

function drawWidths(host, runs) {
  const widest = Math.max(...runs.map((run) => run.block));
  const xs = Array.from({ length: Math.max(widest - 1, 1) }, (_, i) => i + 2);
  const many = runs.length > 1;
  const points = { show: true, size: 6 };
  const lines = runs.flatMap((run) => [
    line(many ? `${run.name}, chain` : "chain", "--rust", [7, 5], { named: "below", points, value: (u, v) => tau(v) }),
    line(many ? `${run.name}, tree` : "tree", "--blue", undefined, { named: "above", points, value: (u, v) => tau(v) }),
  ]);
  const columns = runs.flatMap((run) => {
    const at = new Map(run.widths);
    return [xs.map((w) => at.get(w)), xs.map((w) => (w <= run.block ? run.treeTau[w - 2] : undefined))];
  });
  return draw(host, [xs, ...columns], {
    scales: { x: { time: false }, y: { range: fromZero } },
    x: axis("tokens verified per target pass", { incrs: [1, 2, 4, 8, 16], space: 30 }),
    y: axis("τ: tokens per pass", { size: 46 }),
    series: [{ label: "verified", value: (u, v) => count(v) }, ...lines],
    hooks: [floorAtOne],
  });
}

function drawSlots(host, runs) {
  const most = Math.max(...runs.map((run) => run.bySlot.length));
  const xs = Array.from({ length: most }, (_, i) => i + 1);
  const many = runs.length > 1;
  const kinds = [["accepted", "--blue", undefined, 1], ["if reached", "--rust", [7, 5], 2], ["top-1, all anchors", "--green", [2, 3], 3]];
  const lines = runs.flatMap((run) => kinds.map(([name, colour, dash]) =>
    line(many ? `${run.name}, ${name}` : name, colour, dash, { points: { show: true, size: 6 }, value: (u, v) => share(v) })));
  const columns = runs.flatMap((run) => kinds.map(([, , , at]) => run.bySlot.map((row) => row[at])));
  return draw(host, [xs, ...columns], {
    scales: { x: { time: false, range: () => [0.5, most + 0.5] }, y: { range: () => [0, 1] } },
    x: axis("slot", { incrs: [1, 2, 4, 8, 16], space: 30 }),
    y: axis("share", { values: (u, v) => v.map((s) => `${Math.round(100 * s)} %`), size: 56 }),
    series: [{ label: "slot", value: (u, v) => count(v) }, ...lines],
  });
}

/* How many rounds, on top of each bar. */
function countBars(u) {
  const { ctx } = u;
  ctx.save();
  ctx.fillStyle = theme("--ink");
  ctx.font = `${11.5 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  u.data[0].forEach((x, i) => {
    const rounds = u.data[1][i];
    if (rounds) ctx.fillText(count(rounds), u.valToPos(x, "x", true), u.valToPos(rounds, "y", true) - 5 * devicePixelRatio);
  });
  ctx.restore();
}

function drawHistogram(host, runs) {
  const [run] = runs;
  const xs = run.histogram.map(([tokens]) => tokens);
  return draw(host, [xs, run.histogram.map(([, rounds]) => rounds)], {
    scales: { x: { time: false, range: () => [0.4, xs[xs.length - 1] + 0.6] }, y: { range: fromZero } },
    x: axis("tokens committed", { incrs: [1, 2, 4, 8, 16], space: 30, grid: { show: false } }),
    y: axis("rounds", { size: 56 }),
    series: [
      { label: "committed", value: (u, v) => count(v) },
      { label: "rounds", stroke: theme("--blue"), fill: theme("--sky"), width: 1, points: { show: false },
        paths: uPlot.paths.bars({ size: [0.72, 60], radius: 0.08 }),
        value: (u, v) => (v == null ? "" : `${count(v)} (${share(v / run.rounds)})`) },
    ],
    hooks: [countBars],
  });
}

const CHARTS = { budgets: drawBudgets, widths: drawWidths, slots: drawSlots, histogram: drawHistogram };

/* Draw every chart below `root`, in the colours of the theme; draw again on a change of width. */
function drawCharts(root, runs) {
  for (const host of root.querySelectorAll(".chart")) {
    let drawn;
    let width = 0;
    const again = () => {
      if (drawn) drawn.destroy();
      width = host.clientWidth;
      drawn = CHARTS[host.dataset.chart](host, runs);
    };
    again();
    document.addEventListener("themechange", again);
    new ResizeObserver(() => host.clientWidth !== width && again()).observe(host);
  }
}
