/** Longer than any upload takes; what is older was left by a crash. */
const ABANDONED_MS = 24 * 3600 * 1000

export function isAbandoned(begun: Date): boolean {
  return Date.now() - begun.getTime() > ABANDONED_MS
}
