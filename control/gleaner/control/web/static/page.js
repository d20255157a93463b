// What pages do beyond forms and links: sign in by code, count down, say that control is away, follow a log, read files
// into the form of a campaign, and make the rows of wide tables cards on a phone.
"use strict";

// The code stands behind the #, which browsers never send. It leaves the address before anything else happens.
const byCode = document.getElementById("by-code");
function signIn() {
  if (!byCode || location.hash.length < 2) return;
  byCode.elements.code.value = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname + location.search);
  byCode.submit();
}
signIn();
window.addEventListener("hashchange", signIn);  // the address was pasted where this page was open already

// What was done is said once: neither a reload nor a bookmark says it again.
const place = new URL(location.href);
if (place.searchParams.has("done")) {
  place.searchParams.delete("done");
  history.replaceState(null, "", place);
}

document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

const began = { at: performance.now() };
function countDown() {
  for (const each of document.querySelectorAll("[data-left-s]")) {
    const left = Math.max(0, Math.round(each.dataset.leftS - (performance.now() - began.at) / 1000));
    const [h, m, s] = [Math.floor(left / 3600), Math.floor(left / 60) % 60, left % 60];
    each.textContent = `${h ? `${h} h ` : ""}${h || m ? `${m} min ` : ""}${s} s`;
  }
}
setInterval(countDown, 1000);

const away = document.getElementById("away");
const sayAway = (isAway) => { away.hidden = !isAway; };
const isBusy = () => {
  const live = document.getElementById("live");
  const chosen = document.getSelection();
  const isRead = live && chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode);
  const here = document.activeElement;
  return live && live !== here && (isRead || (live.contains(here) && here.id !== "lines"));
};
// Nobody loses the place of the keyboard, or a text that is being copied, because the page shows something new.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden || isBusy()) event.preventDefault();
});
document.addEventListener("htmx:afterRequest", (event) => {
  const { successful, xhr } = event.detail;
  if (successful) began.at = performance.now();
  sayAway(!successful && !(xhr.status >= 400 && xhr.status < 500));
  if (xhr.status === 403 || xhr.status === 404) location.reload();  // gone meanwhile: the page says so itself
});

// A phone shows each row of a wide table as a card, whose lines have the names of the columns.
function nameCells() {
  for (const table of document.querySelectorAll("div.wide > table")) {
    const heads = [...(table.tHead?.rows[0].cells ?? [])].map((head) => head.textContent.trim());
    if (heads.length < 5) continue;
    table.classList.add("stack");
    for (const cell of table.querySelectorAll("tbody td:not([colspan])")) cell.dataset.label = heads[cell.cellIndex];
  }
}

// A log stays at its end while lines come, unless its reader has scrolled up.
let atEnd = true, height = 0;
const log = () => document.querySelector("#lines[data-follow]");
function follow() {
  if (log()) log().scrollTop = atEnd ? log().scrollHeight : height;
}
document.addEventListener("htmx:beforeSwap", () => {
  if (!log()) return;
  const { scrollTop, clientHeight, scrollHeight } = log();
  [atEnd, height] = [scrollTop + clientHeight > scrollHeight - 20, scrollTop];
});
document.addEventListener("htmx:afterSwap", () => { nameCells(); follow(); });
nameCells();
follow();

// The form of a campaign: files are read into its fields, an image is put into its text, a wrong line is chosen.
for (const each of document.querySelectorAll("[data-scripted]")) each.hidden = false;
for (const each of document.querySelectorAll("input[data-into]")) {
  each.addEventListener("change", async () => {
    const field = document.getElementById(each.dataset.into), file = each.files[0];
    each.setCustomValidity(file?.size > field.maxLength ? "The file is too large for this page: use glean submit." : "");
    if (file && each.reportValidity()) field.value = await file.text();
  });
}
const campaign = document.getElementById("campaign");
document.getElementById("image")?.addEventListener("change", (event) => {
  const line = `image: ${event.target.value}`, had = /^image:.*$/m;
  campaign.value = had.test(campaign.value) ? campaign.value.replace(had, line) : `${line}\n${campaign.value}`;
});
if (campaign?.dataset.line) {
  const before = campaign.value.split("\n").slice(0, campaign.dataset.line - 1).join("\n").length;
  const end = campaign.value.indexOf("\n", before + 1);
  campaign.focus();
  campaign.setSelectionRange(before && before + 1, end < 0 ? campaign.value.length : end);
}

// In the timeline, a click leads to what was there then. Without scripts it leads to the node.
document.addEventListener("click", (event) => {
  const stripe = event.target.closest("#stripes a");
  if (!stripe || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const picture = stripe.ownerSVGElement;
  const { left, width } = picture.getBoundingClientRect();
  const at = Number(picture.dataset.beginS) + Number(picture.dataset.lengthS) * (event.clientX - left) / width;
  const node = stripe.querySelector("title").textContent;
  location.assign(`/web/timeline/at?${new URLSearchParams({ node, at: Math.floor(at) })}`);
});

// News: control says that something has changed, and the page asks for itself anew. Only the page in front listens, for
// a browser has few connections to one host.
const AWAY_MS = 5000, AGAIN_MS = 30000, PAUSE_MS = 2000;
const topic = document.getElementById("live")?.dataset.events;
let source, known, isDue, fails;
function listen() {
  if (!topic || source || document.hidden) return;
  source = new EventSource(topic);
  source.addEventListener("open", () => { clearTimeout(fails); fails = undefined; sayAway(false); });
  source.addEventListener("news", (event) => {
    if (known !== undefined && known !== event.data && !isDue) {
      isDue = setTimeout(() => { isDue = undefined; htmx.trigger(document.body, "news"); }, PAUSE_MS * Math.random());
    }
    known = event.data;
  });
  source.addEventListener("error", () => {  // the browser tries again by itself, unless control has refused
    fails ??= setTimeout(() => sayAway(true), AWAY_MS);
    if (source?.readyState === EventSource.CLOSED) { leave(); setTimeout(listen, AGAIN_MS); }
  });
}
function leave() {
  source?.close();
  clearTimeout(fails);
  source = fails = undefined;
}
document.addEventListener("visibilitychange", () => (document.hidden ? leave() : listen()));
window.addEventListener("pagehide", leave);
window.addEventListener("pageshow", listen);
