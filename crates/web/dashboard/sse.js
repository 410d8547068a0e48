// SPDX-License-Identifier: Apache-2.0
// Parses a stream of server-sent events that arrives in parts.

/** Splits parts of a stream into events. */
export class EventParser {
    #rest = '';
    #fields = { id: null, name: null, data: [] };

    /** The events that are complete with this text: `{id, name, data}`. An event without data has only an id. */
    push(text) {
        const events = [];
        const lines = (this.#rest + text).split('\n');
        this.#rest = lines.pop();
        for (const line of lines) {
            if (line === '' || line === '\r') this.#end(events);
            else this.#field(line.endsWith('\r') ? line.slice(0, -1) : line);
        }
        return events;
    }

    #field(line) {
        const colon = line.indexOf(':');
        if (colon === 0) return;
        const name = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
        if (name === 'id') this.#fields.id = value;
        else if (name === 'event') this.#fields.name = value;
        else if (name === 'data') this.#fields.data.push(value);
    }

    #end(events) {
        const { id, name, data } = this.#fields;
        this.#fields = { id: null, name: null, data: [] };
        if (id !== null || data.length > 0) events.push({ id, name, data: data.length > 0 ? data.join('\n') : null });
    }
}

/** The two parts of an event id `EPOCH-SEQ`; null if it is none. */
export function parseEventId(text) {
    const match = /^([0-9A-Za-z]+)-(\d+)$/.exec(text ?? '');
    return match ? { epoch: match[1], seq: Number(match[2]) } : null;
}
