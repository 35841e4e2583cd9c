
(() => {
  "use strict";
  const root = document.documentElement;
  const wide = matchMedia("(min-width: 64rem)");

  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* a page from disk may not */ } };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

  const numberOf = (text) => {
    const found = text.replace(/[−]/g, "-").replace(/,/g, "").match(/[-+]?\d+(\.\d+)?(e[-+]?\d+)?/i);
    return found ? Number(found[0]) : NaN;
  };

  const keyOf = (row, index, numeric) => {
    const cell = row.cells[index];
    if (cell.querySelector(".absent")) return null;
    const text = cell.textContent.trim();
    if (!numeric) return text;
    const value = numberOf(text);
    return Number.isNaN(value) ? null : value;
  };

  const partsOf = (text) => text.split(/(\d+(?:\.\d+)?)/);

  const compareTexts = (a, b) => {
    const [left, right] = [partsOf(a), partsOf(b)];
    for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
      const found = i % 2 ? left[i] - right[i] : left[i].localeCompare(right[i], root.lang);
      if (found) return found;
    }
    return left.length - right.length;
  };

  const compare = (a, b) => (typeof a === "number" ? a - b : compareTexts(a, b));

  const sort = (head) => {
    const table = head.closest("table");
    const body = table.tBodies[0];
    const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
    const order = next === undefined ? "ascending" : next;
    table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    if (!table.rowsAsWritten) table.rowsAsWritten = [...body.rows];
    if (order === null) { body.append(...table.rowsAsWritten); return; }
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = table.rowsAsWritten.map((row) => [keyOf(row, head.cellIndex, "number" in head.dataset), row]);
    rows.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };

  const follow = () => {
    const entries = new Map([...document.querySelectorAll("nav > ul > li")].map((item) => [item.firstElementChild.hash.slice(1), item]));
    const seen = new Set();
    const observer = new IntersectionObserver((changes) => {
      changes.forEach(({ target, isIntersecting }) => seen[isIntersecting ? "add" : "delete"](target.id));
      const current = [...entries.keys()].filter((id) => seen.has(id)).pop();
      if (current) entries.forEach((item, id) => item.classList.toggle("current", id === current));
    }, { rootMargin: "0px 0px -70% 0px" });
    document.querySelectorAll(".part").forEach((part) => observer.observe(part));
  };

  const hint = (box) => {
    const mark = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.addEventListener("scroll", mark, { passive: true });
    new ResizeObserver(mark).observe(box);
  };

  addEventListener("DOMContentLoaded", () => {
    const contents = document.getElementById("contents");
    const fit = () => { contents.open = wide.matches; };
    wide.addEventListener("change", fit);
    fit();
    contents.addEventListener("click", (event) => { if (event.target.closest("a") && !wide.matches) contents.open = false; });
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
    });
    document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => sort(button.closest("th"))));
    document.querySelectorAll(".scroll").forEach(hint);
    addEventListener("beforeprint", () => document.querySelectorAll(".fold").forEach((fold) => { fold.open = true; }));
    follow();
  });
})();
