// SPDX-License-Identifier: Apache-2.0
// The time of the node. Ages are computed from it, because the clock of the browser's machine may be wrong or jump: the
// node's time is the last one that it sent, and moves on with the browser's monotonic clock.

import { dayTime, shortSpan, span, visible } from './format.js';
import { el } from './dom.js';

let serverTime = null;
let measuredAt = 0;

/** Takes over the time of an answer, in milliseconds. Its header `Date` has whole seconds. */
export function setServerTime(time) {
    const estimated = now();
    // Within the resolution of the header, the estimate is better than the header.
    if (serverTime !== null && estimated >= time && estimated < time + 2000) return;
    serverTime = time;
    measuredAt = performance.now();
}

/** The node's time is at least that of an event which it has sent. */
export function noticeEventTime(time) {
    if (time > now()) {
        serverTime = time;
        measuredAt = performance.now();
    }
}

/** The node's time now, in milliseconds since 1970. */
export function now() {
    if (serverTime === null) return Date.now();
    return serverTime + (performance.now() - measuredAt);
}

/** Milliseconds since `time`; never negative. */
export const age = (time) => Math.max(0, now() - time);

/** A time of the API in milliseconds; null stays null. */
export function parse(text) {
    if (!text) return null;
    const time = Date.parse(text);
    return Number.isNaN(time) ? null : time;
}

/** An element with a time of day; the UTC time is its title. */
export function timeElement(milliseconds, withMilliseconds = false) {
    if (milliseconds === null) return el('span', { class: 'faint' }, 'unknown');
    const iso = new Date(milliseconds).toISOString();
    return el('time', { datetime: iso, title: iso }, dayTime(milliseconds, now(), withMilliseconds));
}

/** An element with an age that goes on. */
export function ageElement(milliseconds, form = 'long') {
    if (milliseconds === null) return el('span', { class: 'faint' }, 'unknown');
    const element = el('time', { 'data-since': milliseconds, 'data-form': form });
    setAge(element, milliseconds);
    return element;
}

/** Sets the age of an element that [`ageElement`] has made. */
export function setAge(element, milliseconds) {
    element.dataset.since = milliseconds ?? '';
    element.dateTime = milliseconds === null ? '' : new Date(milliseconds).toISOString();
    element.title = element.dateTime;
    tickOne(element);
}

function tickOne(element) {
    const since = element.dataset.since;
    const form = element.dataset.form === 'short' ? shortSpan : span;
    const text = since === '' ? '–' : form(age(Number(since)));
    if (element.textContent !== text) element.textContent = visible(text);
}

/** Moves all ages on the page on. Lists show only what is on the screen, so that these are few. */
export function tick() {
    for (const element of document.querySelectorAll('time[data-since]')) tickOne(element);
}

/** The value of a date field as UTC. */
export const toUtc = (value) => (value === '' ? '' : new Date(value).toISOString().replace('.000', ''));

/** The value of a date field for a time of the API. */
export function toLocal(text) {
    const time = parse(text);
    if (time === null) return '';
    return new Date(time - new Date(time).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
