// Elements without markup in strings: text can only ever become text.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const find = (id) => document.getElementById(id);
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
