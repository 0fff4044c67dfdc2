/**
 * Text that a person has typed and not saved yet. It is kept in this tab, survives a reload and a new sign-in of the same
 * person, and ends with the tab.
 */
import { useCallback, useEffect, useState } from 'react'
import { parseExact } from './exact.ts'

const PREFIX = 'botica-draft:'
/** A second copy: the client empties the whole session storage when a session ends. */
const kept = new Map<string, string>()

export interface Draft<T> {
  readonly value: T
  /** True when it was typed before this page was opened. */
  readonly isRestored: boolean
  readonly isDirty: boolean
  /** Grows each time that the typed text is discarded. */
  readonly round: number
  set(value: T): void
  /** Goes back to what is saved. */
  discard(): void
}

/** A draft of the thing that `key` names; `saved` is what the service has. */
export function useDraft<T>(key: string, saved: T): Draft<T> {
  const [found, setFound] = useState(() => read<T>(key))
  const [typed, setTyped] = useState(found)
  const [round, setRound] = useState(0)
  const last = JSON.stringify(saved)
  const set = useCallback(
    (value: T) => {
      const text = JSON.stringify(value)
      // Typing back what is saved leaves no draft.
      if (text === last) forget(key)
      else keep(key, text)
      setTyped({ value })
    },
    [key, last],
  )
  const discard = useCallback(() => {
    forget(key)
    setFound(undefined)
    setTyped(undefined)
    setRound((before) => before + 1)
  }, [key])
  useEffect(() => {
    const warn = (event: BeforeUnloadEvent) => {
      if (kept.has(key) && !isLeaving) event.preventDefault()
    }
    addEventListener('beforeunload', warn)
    return () => removeEventListener('beforeunload', warn)
  }, [key])
  const value = typed === undefined ? saved : typed.value
  const isDirty = typed !== undefined
  return { value, isRestored: found !== undefined, isDirty, round, set, discard }
}

/** Forgets a draft from outside of its page, as when its thing is saved or deleted. */
export function forget(key: string): void {
  kept.delete(key)
  sessionStorage.removeItem(PREFIX + key)
}

/** Writes again what the client has thrown away with its session. */
export function keepDrafts(): void {
  for (const [key, text] of kept) sessionStorage.setItem(PREFIX + key, text)
}

let isLeaving = false

/** A way out that comes back: nobody is asked whether they want to leave. */
export function leaveQuietly(): void {
  isLeaving = true
}

function keep(key: string, text: string): void {
  kept.set(key, text)
  sessionStorage.setItem(PREFIX + key, text)
}

function read<T>(key: string): { readonly value: T } | undefined {
  const text = kept.get(key) ?? sessionStorage.getItem(PREFIX + key)
  if (text === null) return undefined
  kept.set(key, text)
  // `keep` wrote it, under this key.
  return { value: parseExact<T>(text) }
}
