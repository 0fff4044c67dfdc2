/**
 * Unsaved text of one membership. It is kept per tab, survives a reload and a new sign-in to the same membership, and
 * ends with the tab.
 */
import { useCallback, useEffect, useState } from 'react'
import { parseExact } from './exact.ts'

const PREFIX = 'botica-draft:'
/** A second copy: the API client clears the whole session storage when a session ends. */
const kept = new Map<string, string>()
let owner = ''

/** Names the membership whose drafts are read and kept from now on. */
export function ownDrafts(membership: string): void {
  owner = membership
}

function place(key: string): string {
  return `${PREFIX}${owner}/${key}`
}

export interface Draft<T> {
  readonly value: T
  /** True when typed before this page was opened. */
  readonly isRestored: boolean
  readonly isDirty: boolean
  /** Incremented when the typed text is discarded. */
  readonly round: number
  set(value: T): void
  discard(): void
  /** After a save: discards the draft, or bases the text typed since then on the saved value. */
  settle(rebase: (typed: T) => T): void
}

/** Returns the draft for `key`; `saved` is the service's value. Without a key, it ends with the page. */
export function useDraft<T>(key: string | undefined, saved: T): Draft<T> {
  const [found, setFound] = useState(() => read<T>(key))
  const [typed, setTyped] = useState(found)
  const [round, setRound] = useState(0)
  const [shown, setShown] = useState(key)
  // A page may stay while the key changes, as with the kind of an input.
  if (shown !== key) {
    const next = read<T>(key)
    setShown(key)
    setFound(next)
    setTyped(next)
  }
  const last = JSON.stringify(saved)
  const set = useCallback(
    (value: T) => {
      const text = JSON.stringify(value)
      // Typing the saved value again removes the draft.
      if (text === last) {
        forget(key)
        setFound(undefined)
        setTyped(undefined)
        return
      }
      if (key !== undefined) keep(key, text)
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
  const settle = useCallback(
    (rebase: (typed: T) => T) => {
      // `useSend` has removed a draft that is as it was sent.
      const left = read<T>(key)
      if (key === undefined || left === undefined) return discard()
      const value = rebase(left.value)
      keep(key, JSON.stringify(value))
      setFound(undefined)
      setTyped({ value })
    },
    [key, discard],
  )
  useEffect(() => {
    const warn = (event: BeforeUnloadEvent) => {
      if (key !== undefined && kept.has(key) && !isLeaving) event.preventDefault()
    }
    addEventListener('beforeunload', warn)
    return () => removeEventListener('beforeunload', warn)
  }, [key])
  const value = typed === undefined ? saved : typed.value
  const isDirty = typed !== undefined
  return { value, isRestored: found !== undefined, isDirty, round, set, discard, settle }
}

/** Removes a draft from outside its page, after a save or deletion. */
export function forget(key: string | undefined): void {
  if (key === undefined) return
  kept.delete(key)
  sessionStorage.removeItem(place(key))
}

/** Writes drafts again after the client cleared the session storage. */
export function keepDrafts(): void {
  for (const [key, text] of kept) store(key, text)
}

let isLeaving = false

/** Leaves for a round trip without the unsaved-changes prompt. */
export function leaveQuietly(): void {
  isLeaving = true
}

export function keep(key: string, text: string): void {
  kept.set(key, text)
  store(key, text)
}

/** A text for which the storage has no room is kept until the page ends. */
function store(key: string, text: string): void {
  try {
    sessionStorage.setItem(place(key), text)
  } catch {
    // An older text would be restored instead.
    sessionStorage.removeItem(place(key))
  }
}

export function readKept(key: string | undefined): string | undefined {
  if (key === undefined) return undefined
  const text = kept.get(key) ?? sessionStorage.getItem(place(key))
  if (text === null) return undefined
  kept.set(key, text)
  return text
}

function read<T>(key: string | undefined): { readonly value: T } | undefined {
  const text = readKept(key)
  // Written by `keep` under this key.
  return text === undefined ? undefined : { value: parseExact<T>(text) }
}
