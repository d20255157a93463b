(() => {
  const tip = document.getElementById("tip");
  const hide = () => { tip.style.visibility = "hidden"; };
  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (!target) { hide(); return; }
    if (tip.textContent !== target.dataset.tip) { tip.textContent = target.dataset.tip; }
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 16 + box.width < window.innerWidth;
    const below = event.clientY + 16 + box.height < window.innerHeight;
    tip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - 16 - box.width)}px`;
    tip.style.top = `${Math.max(4, below ? event.clientY + 16 : event.clientY - 16 - box.height)}px`;
    tip.style.visibility = "visible";
  });
  document.addEventListener("pointerleave", hide);
  window.addEventListener("scroll", hide, { passive: true });
})();
