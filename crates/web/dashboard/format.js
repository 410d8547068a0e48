// SPDX-License-Identifier: Apache-2.0
// Texts for numbers, times and untrusted names.

// Characters that are invisible or change the direction of the text around them.
const HIDDEN =
    /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ud800-\udfff]/gu;

/** The text with every hidden character as `\u{202e}`, as the command line shows it. */
export function visible(text) {
    return text.replace(HIDDEN, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

const NUMBER = new Intl.NumberFormat('en');

/** A number with separators. */
export const count = (number) => NUMBER.format(number);

/** A number with its noun in singular or plural. */
export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Microseconds as a short text. */
export function micros(value) {
    if (value < 1000) return `${Math.round(value)} µs`;
    if (value < 1e6) return `${(value / 1000).toPrecision(3)} ms`;
    if (value < 1e9) return `${(value / 1e6).toPrecision(3)} s`;
    return span(value / 1000);
}

/** A duration in milliseconds as a short text. A negative one, which a clock that was set produces, is 0. */
export function span(milliseconds) {
    const seconds = Math.floor(Math.max(0, milliseconds) / 1000);
    if (seconds < 60) return `${seconds} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${pad(seconds % 60)} s`;
    const hours = Math.floor(minutes / 60);
    if (hours < 24) return `${hours} h ${pad(minutes % 60)} min`;
    return `${count(Math.floor(hours / 24))} d ${hours % 24} h`;
}

/** A duration in a table, in which most are 0. */
export const duration = (milliseconds) => (milliseconds === 0 ? '–' : span(milliseconds));

/** A duration with one unit, for columns. */
export function shortSpan(milliseconds) {
    return span(milliseconds).replace(/^(\S+ \S+).*$/, '$1');
}

const pad = (number, width = 2) => String(number).padStart(width, '0');
const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/** The time of day in the time zone of the browser. */
export function clockTime(milliseconds, withMilliseconds = false) {
    const at = new Date(milliseconds);
    const text = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
    return withMilliseconds ? `${text}.${pad(at.getMilliseconds(), 3)}` : text;
}

/** Day and time of day; without the day if it is the day of `now`. */
export function dayTime(milliseconds, now, withMilliseconds = false) {
    const [at, today] = [new Date(milliseconds), new Date(now)];
    const time = clockTime(milliseconds, withMilliseconds);
    if (at.toDateString() === today.toDateString()) return time;
    const year = at.getFullYear() === today.getFullYear() ? '' : ` ${at.getFullYear()}`;
    return `${at.getDate()} ${MONTHS[at.getMonth()]}${year} ${time}`;
}

/** The offset of the browser's time zone, for example `UTC+01:00`. */
export function zoneName() {
    const minutes = -new Date().getTimezoneOffset();
    if (minutes === 0) return 'UTC';
    const sign = minutes < 0 ? '−' : '+';
    return `UTC${sign}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
}

/** A key whose alphabetical order is the natural one: `VI_2` before `VI_10`. */
export const naturalKey = (text) => text.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, '0'));

/** A word of the API as it begins a label: `peer-silent` is `peer silent`. */
export const words = (word) => word.replaceAll('-', ' ');
