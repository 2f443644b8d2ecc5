"use strict";
// What htmx and plain links do not do: a key for the search field, select all, a pause, plots.

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.querySelector("[data-search]");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  }
});

document.addEventListener("change", (event) => {
  const all = event.target.closest("[data-select-all]");
  if (all) {
    for (const each of document.querySelectorAll(all.dataset.selectAll)) each.checked = all.checked;
  }
  const changes = event.target.closest("[data-submits]");
  if (changes) changes.form.requestSubmit();
});

// Nothing is asked while nobody looks, or while a person reads.
document.addEventListener("htmx:beforeRequest", (event) => {
  const asker = event.detail.elt;
  const polled = /every/.test(asker.getAttribute("hx-trigger") || "");
  const pause = document.querySelector("[data-pause]");
  const first = !asker.dataset.asked;
  asker.dataset.asked = "1";
  if (polled && ((pause && pause.checked) || (document.hidden && !first))) event.preventDefault();
});

// Of a list that grows at its top the oldest rows go.
document.addEventListener("htmx:afterSettle", () => {
  for (const list of document.querySelectorAll("[data-most]")) {
    while (list.children.length > Number(list.dataset.most)) list.lastElementChild.remove();
  }
});

const plots = document.querySelector("[data-rates]");
if (plots) {
  const made = new Map();
  const probe = document.createElement("i");
  document.body.append(probe);
  const seen = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  const options = (width) => ({
    width,
    height: 220,
    legend: { live: true },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
    axes: [
      {
        stroke: seen("--dim"),
        grid: { stroke: seen("--line"), width: 1 },
        ticks: { show: false },
        space: 80,
        values: (_, splits) => splits.map(clock),
      },
      { stroke: seen("--dim"), grid: { stroke: seen("--line"), width: 1 }, ticks: { show: false }, size: 60 },
    ],
    series: [
      { value: (_, at) => (at == null ? "--" : clock(at)) },
      { label: "stored", stroke: seen("--accent"), width: 2, value: (_, v) => (v == null ? "" : v.toFixed(1)) },
      { label: "given out", stroke: seen("--well"), width: 2, value: (_, v) => (v == null ? "" : v.toFixed(1)) },
    ],
  });
  const look = async () => {
    if (document.hidden && made.size) return;
    const answer = await fetch(plots.dataset.rates, { credentials: "same-origin" });
    if (!answer.ok) return;
    const rates = await answer.json();
    if (!made.size && Object.keys(rates).length) plots.replaceChildren();
    for (const [name, rate] of Object.entries(rates)) {
      let plot = made.get(name);
      if (!plot) {
        const card = document.createElement("section");
        card.className = "card";
        const title = document.createElement("h2");
        title.textContent = name;
        const place = document.createElement("div");
        place.className = "plot";
        card.append(title, place);
        plots.append(card);
        plot = { chart: new uPlot(options(place.clientWidth), [[], [], []], place), place };
        made.set(name, plot);
      }
      plot.chart.setData([rate.at, rate.put, rate.got]);
    }
  };
  addEventListener("resize", () => {
    for (const { chart, place } of made.values()) chart.setSize({ width: place.clientWidth, height: 220 });
  });
  look().catch(() => {});
  setInterval(() => look().catch(() => {}), 5000);
}
