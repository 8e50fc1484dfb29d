"""The script of the page of an evaluation: what points say, saving of figures, the player of episodes.

Without it the page is complete but for these. It asks for nothing from any network.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

# What points say: the nearest one to the pointer, or the one chosen by the arrow keys.
POINTS = """
const tip = document.createElement('div');
tip.className = 'tip';
tip.setAttribute('role', 'status');
tip.hidden = true;
document.body.append(tip);
const inSvg = (svg, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
for (const group of document.querySelectorAll('svg .points')) {
  const svg = group.ownerSVGElement, dots = [...group.children];
  const places = dots.map(dot => [dot.cx.baseVal.value, dot.cy.baseVal.value]);
  let chosen = -1;
  const choose = i => {
    if (chosen >= 0) dots[chosen].classList.remove('on');
    chosen = i;
    tip.hidden = i < 0;
    if (i < 0) return;
    dots[i].classList.add('on');
    tip.textContent = dots[i].getAttribute('aria-label');
    const box = dots[i].getBoundingClientRect(), width = document.documentElement.clientWidth;
    tip.style.left = '0px';  // room for its full width, before it is measured
    tip.style.left = scrollX + Math.max(4, Math.min(box.right + 6, width - tip.offsetWidth - 4)) + 'px';
    const above = box.top - tip.offsetHeight - 6;
    tip.style.top = scrollY + (above > 4 ? above : box.bottom + 6) + 'px';
  };
  const nearest = event => {
    const at = inSvg(svg, event);
    let best = -1, least = 12 ** 2;
    places.forEach(([x, y], i) => {
      const distance = (x - at.x) ** 2 + (y - at.y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  };
  svg.addEventListener('pointermove', event => choose(nearest(event)));
  svg.addEventListener('pointerdown', event => choose(nearest(event)));
  svg.addEventListener('pointerleave', event => { if (event.pointerType === 'mouse') choose(-1); });
  group.addEventListener('focus', () => { if (group.matches(':focus-visible')) choose(Math.max(chosen, 0)); });
  group.addEventListener('blur', () => choose(-1));
  group.addEventListener('keydown', event => {
    const last = dots.length - 1;
    const to = {ArrowRight: chosen + 1, ArrowUp: chosen + 1, ArrowLeft: chosen - 1, ArrowDown: chosen - 1, Home: 0,
      End: last}[event.key];
    if (event.key === 'Escape') choose(-1);
    if (to === undefined || !dots.length) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(to, last)));
  });
}
"""

# Figures as files: the drawing with the colours of the page as it is shown.
SAVE = """
const standalone = svg => {
  const copy = svg.cloneNode(true), {width, height} = svg.viewBox.baseVal, computed = getComputedStyle(svg);
  for (const part of copy.querySelectorAll('.points, .cursor')) part.remove();
  const paper = document.createElementNS(svg.namespaceURI, 'rect');
  for (const [key, value] of Object.entries({width, height, fill: 'var(--paper)'})) paper.setAttribute(key, value);
  copy.prepend(paper);
  for (const [key, value] of Object.entries({width, height, 'stroke-linejoin': 'round'})) copy.setAttribute(key, value);
  const value = name => computed.getPropertyValue(name).trim().replaceAll('"', "'");
  const text = new XMLSerializer().serializeToString(copy).replace(/var\\((--[a-z]+)\\)/g, (all, name) => value(name));
  return {text, width, height};
};
const download = (blob, name) => {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
const fileName = svg => svg.getAttribute('aria-label').toLowerCase().replace(/[^a-z0-9]+/g, '-').slice(0, 60);
const savers = {
  SVG: svg => download(new Blob([standalone(svg).text], {type: 'image/svg+xml'}), fileName(svg) + '.svg'),
  PNG: async svg => {
    const {text, width, height} = standalone(svg), scale = 4, image = new Image();
    image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(text);
    await image.decode();
    const canvas = Object.assign(document.createElement('canvas'), {width: scale * width, height: scale * height});
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => download(blob, fileName(svg) + '.png'), 'image/png');
  },
};
for (const svg of document.querySelectorAll('figure > svg')) {
  const bar = document.createElement('div');
  bar.className = 'save';
  for (const [kind, save] of Object.entries(savers)) {
    const button = Object.assign(document.createElement('button'), {type: 'button', textContent: kind});
    button.setAttribute('aria-label', `Save as ${kind}: ${svg.getAttribute('aria-label')}`);
    button.title = `Save this figure as ${kind}`;
    button.addEventListener('click', () => save(svg));
    bar.append(button);
  }
  svg.after(bar);
}
"""

# The player: a slider over the moments of an episode moves the picture, the cursor in the plot and the numbers.
PLAYER = """
const player = document.getElementById('player');
if (player) {
  const {type, episodes} = JSON.parse(document.getElementById('episodes').textContent);
  const find = selector => player.querySelector(selector), all = selector => [...player.querySelectorAll(selector)];
  const [tabs, figures, picture] = [all('.tabs button'), all('figure'), find('img')];
  const [slider, play, cells] = [find('input'), find('.play'), all('dd')];
  let shown = 0, timer = 0;
  const cursors = figures.map((figure, k) => {
    const svg = figure.querySelector('svg'), line = document.createElementNS(svg.namespaceURI, 'line');
    line.classList.add('cursor');
    ['y1', 'y2'].forEach((end, i) => line.setAttribute(end, episodes[k].y[i]));
    svg.append(line);
    svg.addEventListener('pointerdown', event => { svg.setPointerCapture(event.pointerId); seek(svg, event); });
    svg.addEventListener('pointermove', event => { if (event.buttons) seek(svg, event); });
    return line;
  });
  const go = moment => {
    const episode = episodes[shown], last = episode.x.length - 1, i = Math.max(0, Math.min(moment, last));
    slider.value = i;
    ['x1', 'x2'].forEach(end => cursors[shown].setAttribute(end, episode.x[i]));
    cells.forEach((cell, j) => { cell.textContent = episode.values[i][j]; });
    const label = `step ${episode.values[i][0]} of the ${tabs[shown].dataset.name} episode`;
    slider.setAttribute('aria-valuetext', label);
    if (picture) {
      picture.src = `data:${type};base64,${episode.frames[episode.frame[i]]}`;
      picture.alt = `The environment at ${label}`;
    }
    if (i === last) pause();
  };
  const seek = (svg, event) => {
    const x = inSvg(svg, event).x, xs = episodes[shown].x;
    go(xs.reduce((best, one, i) => Math.abs(one - x) < Math.abs(xs[best] - x) ? i : best, 0));
  };
  const label = text => { play.textContent = text === 'Play' ? '▶' : '❚❚'; play.setAttribute('aria-label', text); };
  const pause = () => { clearInterval(timer); timer = 0; label('Play'); };
  const start = () => {
    const n = episodes[shown].x.length;
    if (+slider.value >= n - 1) go(0);
    label('Pause');
    timer = setInterval(() => go(+slider.value + 1), Math.max(60, Math.min(400, 8000 / n)));
  };
  const toggle = () => timer ? pause() : start();
  const open = k => {
    pause();
    shown = k;
    tabs.forEach((tab, i) => tab.setAttribute('aria-pressed', i === k));
    figures.forEach((figure, i) => { figure.hidden = i !== k; });
    slider.max = episodes[k].x.length - 1;
    go(0);
  };
  tabs.forEach((tab, k) => tab.addEventListener('click', () => open(k)));
  play.addEventListener('click', toggle);
  slider.addEventListener('input', () => { pause(); go(+slider.value); });
  player.addEventListener('keydown', event => {
    const onButton = event.target.closest('button'), onSlider = event.target === slider;
    if (event.key === ' ' && (!onButton || onButton === play)) {
      event.preventDefault();
      toggle();
    } else if (!onSlider && (event.key === 'ArrowRight' || event.key === 'ArrowLeft')) {
      event.preventDefault();
      pause();
      go(+slider.value + (event.key === 'ArrowRight' ? 1 : -1));
    }
  });
  for (const part of all('[hidden]')) part.hidden = false;
  player.classList.add('live');
  open(0);
}
"""

EVALUATION = f"'use strict';\n(() => {{{POINTS}{SAVE}{PLAYER}}})();\n"


def policy() -> str:
    """A content security policy: this script runs and no other, and nothing is loaded from anywhere."""
    digest = base64.b64encode(hashlib.sha256(EVALUATION.encode()).digest()).decode()
    parts = ("default-src 'none'", "img-src data:", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'")
    return f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(parts)}">'


def element() -> str:
    """The script as an element."""
    return f"<script>{EVALUATION}</script>"


def data(name: str, content: Any) -> str:
    """JSON for the script, as an element with the id `name`; no text in it can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f'<script type="application/json" id="{name}">{text.replace("<", chr(92) + "u003c")}</script>'
