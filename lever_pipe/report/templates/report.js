
(() => {
  "use strict";
  const root = document.documentElement;
  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* a page from disk may not */ } };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

  const keyOf = (cell) => {
    if (cell.querySelector(".absent")) return null;
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent.trim();
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), root.lang, { numeric: true }));

  const sort = (head) => {
    const table = head.closest("table");
    const body = table.tBodies[0];
    const order = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
    table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    table.rowsAsWritten ??= [...body.rows];
    if (order === null) { body.append(...table.rowsAsWritten); return; }
    head.setAttribute("aria-sort", order ?? "ascending");
    const sign = order === "descending" ? -1 : 1;
    const rows = table.rowsAsWritten.map((row) => [keyOf(row.cells[head.cellIndex]), row]);
    rows.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };

  const hint = (box) => {
    const mark = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.addEventListener("scroll", mark, { passive: true });
    new ResizeObserver(mark).observe(box);
  };

  const open = () => document.querySelectorAll(".fold").forEach((fold) => { fold.open = true; });
  const unfold = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const fold = target && target.querySelector(".fold");
    if (fold) fold.open = true;
  };

  addEventListener("DOMContentLoaded", () => {
    const contents = document.getElementById("contents");
    const wide = matchMedia("(min-width: 64rem)");
    if (contents) {
      const fit = () => { contents.open = wide.matches; };
      wide.addEventListener("change", fit);
      fit();
    }
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
    });
    document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => sort(button.closest("th"))));
    document.querySelectorAll(".scroll").forEach(hint);
    document.addEventListener("pointerover", ({ target }) => {
      const number = target.closest("span[data-e]");
      if (number) number.title ||= `evidence.csv:${number.dataset.e}`;
    });
    addEventListener("beforeprint", open);
    addEventListener("hashchange", unfold);
    unfold();
  });
})();

