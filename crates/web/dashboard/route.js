// SPDX-License-Identifier: Apache-2.0
// The address of a view: `#/VIEW/ID?name=value`. Everything that an operator may want to send to a colleague is in it.

/** The current route: the view, the id of the instance, and the parameters. */
export function current() {
    const hash = location.hash.replace(/^#/, '');
    const [path, query] = split(hash, '?');
    const parts = path.split('/').filter((part) => part !== '');
    const parameters = new URLSearchParams(query);
    const view = parts[0] ?? 'overview';
    if (view === 'instance' && parts.length > 1) return { view, id: decode(parts.slice(1).join('/')), parameters };
    if (['overview', 'history', 'findings', 'cluster'].includes(view)) return { view, id: null, parameters };
    return { view: 'missing', id: path, parameters };
}

function split(text, separator) {
    const at = text.indexOf(separator);
    return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)];
}

function decode(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

/** The address of a view. Parameters with an empty value are left out. */
export function address(view, id, parameters = {}) {
    const path =
        view === 'overview'
            ? '#/'
            : id === null || id === undefined
              ? `#/${view}`
              : `#/${view}/${encodeURIComponent(id)}`;
    const given = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) {
        for (const one of [value].flat()) {
            if (one !== null && one !== undefined && one !== '') given.append(name, one);
        }
    }
    const query = given.toString();
    return query === '' ? path : `${path}?${query}`;
}

export const instanceAddress = (id) => address('instance', id);

/** Changes the parameters of the current view without a new entry in the browser's list, for typing and zooming. */
export function refine(parameters) {
    const { view, id } = current();
    history.replaceState(history.state, '', address(view, id, parameters));
}

/** Opens an address. */
export function open(target) {
    location.hash = target.replace(/^#/, '');
}
