/**
 * The revision of the code that derives index rows. Increment it with every change of keys or side rows: rows that
 * older code wrote are then rebuilt in the background.
 */
export const INDEX_REVISION = 8
