// SPDX-License-Identifier: Apache-2.0
// Sets the colour scheme before the page is drawn. `auto` follows the setting of the operating system.
'use strict';
(() => {
    const KEY = 'vipwatch-theme';
    const stored = () => {
        try {
            return localStorage.getItem(KEY);
        } catch {
            return null;
        }
    };
    const apply = (theme) => {
        if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
        else delete document.documentElement.dataset.theme;
    };
    apply(stored());
    window.vipwatchTheme = {
        current: () => document.documentElement.dataset.theme ?? 'auto',
        next() {
            const order = ['auto', 'light', 'dark'];
            const theme = order[(order.indexOf(this.current()) + 1) % order.length];
            apply(theme);
            try {
                localStorage.setItem(KEY, theme);
            } catch {
                /* Private windows may have no storage. */
            }
            return theme;
        },
    };
})();
