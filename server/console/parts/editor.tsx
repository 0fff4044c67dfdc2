/** The one editor, for code and JSON. Its style sheets carry the nonce of the page. */

import { json, jsonParseLinter } from '@codemirror/lang-json'
import { type Diagnostic, linter, lintGutter } from '@codemirror/lint'
import { useComputedColorScheme } from '@mantine/core'
import CodeMirror, { EditorView } from '@uiw/react-codemirror'
import { useEffect, useMemo, useState } from 'react'
import { nonce } from '../nonce.ts'

export interface Mark {
  /** From 1. */
  readonly line: number
  readonly column: number
  readonly text: string
}

interface Props {
  readonly label: string
  readonly value: string
  readonly language: 'json' | 'typescript' | 'text'
  readonly onChange?: (value: string) => void
  readonly marks?: readonly Mark[]
  readonly height?: string
}

const NO_MARKS: readonly Mark[] = []

export function Editor(props: Props) {
  const { label, value, language, onChange, marks = NO_MARKS, height = '24rem' } = props
  const scheme = useComputedColorScheme('light')
  const typescript = useTypeScript(language === 'typescript')
  const extensions = useMemo(
    () => [
      EditorView.cspNonce.of(nonce),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ 'aria-label': label }),
      ...(language === 'json' ? [json(), linter(jsonParseLinter()), lintGutter()] : []),
      ...(typescript === undefined ? [] : [typescript, lintGutter()]),
      linter(({ state: { doc } }) => marks.map((mark) => diagnosticOf(mark, doc)), { delay: 0 }),
    ],
    [label, language, typescript, marks],
  )
  return (
    <CodeMirror
      value={value}
      theme={scheme}
      extensions={extensions}
      height={height}
      editable={onChange !== undefined}
      {...(onChange ? { onChange } : {})}
      basicSetup={{ foldGutter: language === 'json' }}
    />
  )
}

/** The grammar is loaded where there is code alone. */
function useTypeScript(isWanted: boolean): LanguageSupport | undefined {
  const [support, setSupport] = useState<LanguageSupport>()
  useEffect(() => {
    if (!isWanted) return
    void import('@codemirror/lang-javascript').then(({ javascript }) =>
      setSupport(javascript({ typescript: true })),
    )
  }, [isWanted])
  return support
}

type LanguageSupport = ReturnType<typeof json>
type Doc = EditorView['state']['doc']

function diagnosticOf({ line, column, text }: Mark, doc: Doc): Diagnostic {
  const found = doc.line(Math.min(Math.max(line, 1), doc.lines))
  const from = Math.min(found.from + column - 1, found.to)
  return { from, to: Math.min(from + 1, found.to), severity: 'error', message: text }
}
