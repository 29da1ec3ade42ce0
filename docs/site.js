// What the theme leaves open: the keyboard scrolls what is wider than the page, and the search's parts have names.
addEventListener("load", () => setTimeout(() => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap, .highlight code, .doc-signature code")) {
    if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
  }
  for (const [place, name] of [["#__search", "Search"], ["#__drawer", "Navigation"], [".md-search", "Search"]]) {
    document.querySelector(place)?.setAttribute("aria-label", name);
  }
}));
