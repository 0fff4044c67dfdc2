/** The JSON of a policy; a separate file, because the text editor is large. */
import { Editor, jsonText } from '../../parts/editor.tsx'
import { texts } from '../../texts/texts.ts'

interface Props {
  readonly text: string
  readonly onChange: (text: string) => void
}

export function JsonTab({ text, onChange }: Props) {
  return (
    <Editor
      label={texts.policies.editor}
      extensions={jsonText}
      height="auto"
      value={text}
      onChange={onChange}
    />
  )
}
