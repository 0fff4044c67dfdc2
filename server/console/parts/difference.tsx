/** Compares two JSON texts side by side. */
import { json } from '@codemirror/lang-json'
import { MergeView } from '@codemirror/merge'
import { EditorView } from '@codemirror/view'
import { useEffect, useRef } from 'react'
import { useLooks } from './editor.tsx'

interface Props {
  readonly label: string
  readonly before: string
  readonly after: string
}

export function Difference({ label, before, after }: Props) {
  const place = useRef<HTMLDivElement>(null)
  const looks = useLooks(label)
  useEffect(() => {
    if (place.current === null) return
    const extensions = [
      looks,
      json(),
      EditorView.editable.of(false),
      EditorView.contentAttributes.of({ tabindex: '0' }),
    ]
    const view = new MergeView({
      a: { doc: before, extensions },
      b: { doc: after, extensions },
      parent: place.current,
      ...(before === after ? {} : { collapseUnchanged: {} }),
    })
    return () => view.destroy()
  }, [before, after, looks])
  return <div ref={place} />
}
