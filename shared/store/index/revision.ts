/** Increment it with every change of keys or side rows: rows of older code are then rebuilt in the background. */
export const INDEX_REVISION = 8
