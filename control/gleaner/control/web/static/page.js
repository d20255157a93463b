// What pages do beyond forms and links: sign in by code, count down, and say that control is away.
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
const isBusy = () => {
  const live = document.getElementById("live");
  const chosen = document.getSelection();
  const isRead = live && chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode);
  return live && live !== document.activeElement && (isRead || live.contains(document.activeElement));
};
// Nobody loses the place of the keyboard, or a text that is being copied, because the page shows something new.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden || isBusy()) event.preventDefault();
});
document.addEventListener("htmx:afterRequest", (event) => {
  const { successful, xhr } = event.detail;
  if (successful) began.at = performance.now();
  away.hidden = successful || (xhr.status >= 400 && xhr.status < 500);
  if (xhr.status === 403 || xhr.status === 404) location.reload();  // gone meanwhile: the page says so itself
});
