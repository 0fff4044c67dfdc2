/** Catches what a page throws while it is drawn, and files of a version that is no longer served. */
import { Button } from '@mantine/core'
import { Component } from 'react'
import { texts } from '../texts/texts.ts'
import { Problem } from './problem.tsx'

interface Props {
  readonly children: React.ReactNode
}

interface State {
  readonly error: unknown
}

export class Boundary extends Component<Props, State> {
  override state: State = { error: undefined }

  static getDerivedStateFromError(error: unknown): State {
    return { error }
  }

  override render() {
    const { error } = this.state
    if (error === undefined) return this.props.children
    const isOld = error instanceof TypeError && /import/i.test(error.message)
    return (
      <Problem
        title={isOld ? texts.app.newVersion : texts.app.failed}
        error={isOld ? texts.app.newVersionHint : error}
      >
        <Button size="xs" onClick={() => location.reload()}>
          {texts.app.reload}
        </Button>
      </Problem>
    )
  }
}
