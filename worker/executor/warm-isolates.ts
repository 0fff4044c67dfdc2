/**
 * Idle isolates of this executor. An isolate serves one run at a time and is dropped after a failure by a limit or V8,
 * after MAX_RUNS, when its heap fills, or when unused.
 */
import { BotIsolate } from './isolate.ts'
import type { IsolatePort } from './isolate-port.ts'
import type { RunMessage } from './messages.ts'
import { SharedIsolate } from './shared-isolate.ts'

const MAX_RUNS = 1000
const RUNS_BETWEEN_HEAP_CHECKS = 50
const IDLE_MS = 10 * 60_000
/** More per bot are kept only while its runs come many at a time. */
const IDLE_PER_BOT = 4
const MANY_IDLE_MS = 2000
/** Idle isolates kept even when runs need the room. */
const FEWEST_IDLE = 16

interface Idle {
  readonly fit: string
  readonly hash: string
  readonly isolate: BotIsolate
}

export class WarmIsolates {
  readonly #port: IsolatePort
  readonly #most: number
  readonly #idle = new Map<string, Idle[]>()
  readonly #sharedIsolates = new Map<string, SharedIsolate>()
  #count = 0
  #inUse = 0

  /** `most`: isolates that fit into the worker's memory. */
  constructor(port: IsolatePort, most: number) {
    this.#port = port
    this.#most = most
  }

  get idleCount(): number {
    return this.#count
  }

  /** Returns a warm isolate of this bot version and membership, or a new one. */
  take(message: RunMessage): BotIsolate {
    this.#inUse++
    const idle = this.#idle.get(message.bot) ?? []
    // A new version was deployed: isolates of the old one are no longer needed.
    for (const old of idle.filter((one) => one.hash !== message.hash)) this.#drop(message.bot, old)
    const fit = isolateKey(message)
    while (!message.fresh) {
      const found = idle.findLast((one) => one.fit === fit)
      if (!found) break
      this.#remove(message.bot, found)
      if (found.isolate.isUsable) return found.isolate
    }
    this.#makeRoom()
    const shared = message.concurrent && !message.fresh ? this.#sharedIsolate(message) : undefined
    return new BotIsolate(this.#port, message.limits.memoryMb, shared)
  }

  #sharedIsolate(message: RunMessage): SharedIsolate {
    const fit = `${message.bot} ${isolateKey(message)}`
    const known = this.#sharedIsolates.get(fit)
    if (known?.hasRoom) return known
    const shared = new SharedIsolate(this.#port, message.limits.memoryMb)
    this.#sharedIsolates.set(fit, shared)
    return shared
  }

  async giveBack(message: RunMessage, isolate: BotIsolate): Promise<void> {
    this.#inUse--
    if (message.fresh || !isolate.isUsable || isolate.runs >= MAX_RUNS) {
      isolate.dispose()
      return
    }
    if (isolate.runs % RUNS_BETWEEN_HEAP_CHECKS === 0) {
      const heapMb = await isolate.heapMb().catch(() => Number.POSITIVE_INFINITY)
      if (heapMb > message.limits.memoryMb / 2) {
        isolate.dispose()
        return
      }
    }
    this.#keep(message, isolate)
  }

  sweep(): void {
    const now = Date.now()
    for (const [fit, { hasRoom }] of this.#sharedIsolates)
      if (!hasRoom) this.#sharedIsolates.delete(fit)
    for (const [bot, idle] of this.#idle) {
      // In order of return; the last returned is the first reused.
      for (const [at, one] of [...idle].reverse().entries()) {
        const allowedMs = at < IDLE_PER_BOT ? IDLE_MS : MANY_IDLE_MS
        if (now - one.isolate.idleSince > allowedMs) this.#drop(bot, one)
      }
    }
  }

  #keep(message: RunMessage, isolate: BotIsolate): void {
    const idle = this.#idle.get(message.bot) ?? []
    this.#idle.delete(message.bot)
    this.#idle.set(message.bot, idle)
    idle.push({ fit: isolateKey(message), hash: message.hash, isolate })
    this.#count++
    this.#makeRoom()
  }

  #makeRoom(): void {
    const allowed = Math.max(FEWEST_IDLE, this.#most - this.#inUse)
    // The map is in order of last use, each list in order of return.
    for (const [bot, idle] of this.#idle) {
      for (const oldest of [...idle]) {
        if (this.#count <= allowed) return
        this.#drop(bot, oldest)
      }
    }
  }

  #drop(bot: string, one: Idle): void {
    this.#remove(bot, one)
    one.isolate.dispose()
  }

  #remove(bot: string, one: Idle): void {
    const idle = this.#idle.get(bot)
    const at = idle?.indexOf(one) ?? -1
    if (!idle || at < 0) return
    idle.splice(at, 1)
    this.#count--
    if (idle.length === 0) this.#idle.delete(bot)
  }
}

function isolateKey(message: RunMessage): string {
  return `${message.hash} ${message.limits.memoryMb} ${message.identity}`
}
