// Lets the keyboard scroll what is wider than the page: the theme puts tables into frames after it has loaded.
addEventListener("load", () => setTimeout(() => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap, .highlight code, .doc-signature code")) {
    if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
  }
}));
