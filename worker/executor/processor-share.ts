/**
 * How much of the time that isolates were at work they had a processor. Isolated-vm 7.0.1 counts the time for which
 * code is entered, so a run that others keep from the processor would use up its CPU limit by waiting. The process
 * knows what all of its threads have used: each isolate gets its part of that.
 */
export class ProcessorShare {
  #usedMs = 0
  /** Share of a millisecond of entered code that ran on a core. */
  value = 1

  /** The next `measure` counts from now. */
  restart(): void {
    this.#usedMs = usedMs()
    this.value = 1
  }

  /** `enteredMs` is what all isolates were entered for since the last time. */
  measure(enteredMs: number): void {
    const now = usedMs()
    if (enteredMs > 0) this.value = Math.min(1, (now - this.#usedMs) / enteredMs)
    this.#usedMs = now
  }
}

function usedMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}
