/** The shared editor for code and JSON. Its style sheets carry the page's nonce. */

import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { json, jsonParseLinter } from '@codemirror/lang-json'
import {
  bracketMatching,
  foldGutter,
  foldKeymap,
  HighlightStyle,
  indentOnInput,
  syntaxHighlighting,
} from '@codemirror/language'
import { type Diagnostic, linter, lintGutter, setDiagnostics } from '@codemirror/lint'
import { highlightSelectionMatches, searchKeymap } from '@codemirror/search'
import { EditorState, type Extension, Transaction } from '@codemirror/state'
import { EditorView, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view'
import { tags } from '@lezer/highlight'
import { Box, useComputedColorScheme } from '@mantine/core'
import { useEffect, useMemo, useRef, useState } from 'react'
import { nonce } from '../client/nonce.ts'

export interface Mark {
  /** 1-based. */
  readonly line: number
  readonly column: number
  readonly text: string
}

interface Props {
  readonly label: string
  readonly value: string
  /** The language; a new value recreates the editor. */
  readonly extensions?: Extension
  readonly onChange?: (value: string) => void
  readonly marks?: readonly Mark[]
  readonly height?: string
}

const NO_EXTENSIONS: Extension = []

export const jsonText: Extension = [
  json(),
  linter(jsonParseLinter()),
  lintGutter(),
  foldGutter(),
  keymap.of(foldKeymap),
]

export function Editor(props: Props) {
  const { label, value, extensions = NO_EXTENSIONS, onChange, marks, height } = props
  const place = useRef<HTMLDivElement>(null)
  const [view, setView] = useState<EditorView>()
  const looks = useLooks(label)
  const isReadOnly = onChange === undefined
  const latest = useRef({ value, onChange })
  /** Texts sent through `onChange` but not yet received as value. */
  const sent = useRef<string[]>([])
  useEffect(() => {
    latest.current = { value, onChange }
  }, [value, onChange])
  useEffect(() => {
    if (place.current === null) return
    const tell = EditorView.updateListener.of(({ docChanged, state, transactions }) => {
      if (!docChanged || transactions.some((one) => one.annotation(Transaction.remote))) return
      const text = state.doc.toString()
      sent.current.push(text)
      latest.current.onChange?.(text)
    })
    const made = new EditorView({
      parent: place.current,
      doc: latest.current.value,
      extensions: [looks, usual, EditorState.readOnly.of(isReadOnly), extensions, tell],
    })
    setView(made)
    return () => made.destroy()
  }, [looks, isReadOnly, extensions])
  useEffect(() => {
    const place = sent.current.lastIndexOf(value)
    sent.current.splice(0, place < 0 ? sent.current.length : place + 1)
    if (view === undefined || place >= 0 || view.state.doc.toString() === value) return
    view.dispatch({
      changes: { from: 0, to: view.state.doc.length, insert: value },
      annotations: Transaction.remote.of(true),
    })
  }, [view, value])
  useEffect(() => {
    if (view === undefined || marks === undefined) return
    const { state } = view
    view.dispatch(
      setDiagnostics(
        state,
        marks.map((mark) => toDiagnostic(mark, state)),
      ),
    )
  }, [view, marks])
  return <Box ref={place} h={height ?? '24rem'} className="editor" />
}

export function useLooks(label: string): Extension {
  const isDark = useComputedColorScheme('light') === 'dark'
  return useMemo(
    () => [
      EditorView.cspNonce.of(nonce),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ 'aria-label': label }),
      EditorView.theme(THEME, { dark: isDark }),
      syntaxHighlighting(HighlightStyle.define(isDark ? DARK : LIGHT)),
    ],
    [label, isDark],
  )
}

const THEME = {
  '&': { color: 'var(--mantine-color-text)', backgroundColor: 'var(--mantine-color-body)' },
  '.cm-content': { fontFamily: 'var(--mantine-font-family-monospace)' },
  '.cm-cursor': { borderLeftColor: 'var(--mantine-color-text)' },
  '.cm-gutters': {
    color: 'var(--mantine-color-dimmed)',
    backgroundColor: 'transparent',
    borderRight: '1px solid var(--mantine-color-default-border)',
  },
  // The library's symbol is missing from most fonts.
  '.cm-collapsedLines:before, .cm-collapsedLines:after': { content: '"…"' },
  '.cm-collapsedLines': {
    color: 'var(--mantine-color-dimmed)',
    background: 'var(--mantine-color-default-hover)',
  },
  '.cm-activeLine': { backgroundColor: 'transparent' },
  '&.cm-focused .cm-activeLine': { backgroundColor: 'var(--mantine-color-default-hover)' },
  '.cm-tooltip, .cm-panels': {
    color: 'var(--mantine-color-text)',
    backgroundColor: 'var(--mantine-color-default)',
    border: '1px solid var(--mantine-color-default-border)',
  },
}
const { keyword, atom, bool, string, number, comment, propertyName, typeName, null: none } = tags
const LIGHT = coloured(['#862e9c', '#2b6a30', '#9c4a00', '#5c6570', '#0b5394', '#0b6b6b'])
const DARK = coloured(['#e0b3ff', '#a5d8a0', '#ffc078', '#a9b1ba', '#91c9ff', '#8ce0e0'])

function coloured(colours: readonly string[]) {
  const [word = '', text = '', value = '', remark = '', name = '', type = ''] = colours
  return [
    { tag: keyword, color: word },
    { tag: string, color: text },
    { tag: [number, bool, none, atom], color: value },
    { tag: comment, color: remark },
    { tag: propertyName, color: name },
    { tag: typeName, color: type },
  ]
}

const usual: Extension = [
  lineNumbers(),
  history(),
  bracketMatching(),
  indentOnInput(),
  highlightActiveLine(),
  highlightSelectionMatches(),
  keymap.of([...defaultKeymap, ...searchKeymap, ...historyKeymap]),
]

function toDiagnostic({ line, column, text }: Mark, { doc }: EditorState): Diagnostic {
  const found = doc.line(Math.min(Math.max(line, 1), doc.lines))
  const from = Math.min(found.from + column - 1, found.to)
  return { from, to: Math.min(from + 1, found.to), severity: 'error', message: text }
}
