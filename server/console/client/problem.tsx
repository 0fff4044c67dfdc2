/** Shows an error in the service's words. */

import { Alert, Button, Group, List, Text } from '@mantine/core'
import { OperationOutcomeError } from '@medplum/core'
import type { OperationOutcomeIssue } from '@medplum/fhirtypes'
import { fill, texts } from '../texts/texts.ts'

interface Props {
  readonly error: unknown
  readonly title?: string
  readonly retry?: (() => void) | undefined
  readonly children?: React.ReactNode
}

export function Problem({ error, title = texts.common.problem, retry, children }: Props) {
  if (error === undefined || error === null) return null
  const lines = problemLines(error)
  return (
    <Alert color="red" variant="light" title={title} role="alert">
      <List spacing={4} listStyleType={lines.length > 1 ? 'disc' : 'none'} size="sm">
        {lines.map(({ text, place }) => (
          <List.Item key={text + place}>
            {text}
            {place !== '' && (
              <Text c="dimmed" size="xs">
                {fill(texts.common.at, { place })}
              </Text>
            )}
          </List.Item>
        ))}
      </List>
      {(retry || children) && (
        <Group mt="sm">
          {retry && (
            <Button size="xs" variant="default" onClick={retry}>
              {texts.common.retry}
            </Button>
          )}
          {children}
        </Group>
      )}
    </Alert>
  )
}

interface ProblemLine {
  readonly text: string
  /** Path of the element, if the service names one. */
  readonly place: string
}

/** Returns a line per issue of the OperationOutcome, otherwise the message. */
export function problemLines(error: unknown): readonly ProblemLine[] {
  if (error instanceof OperationOutcomeError) return error.outcome.issue?.map(toProblemLine) ?? []
  if (error instanceof TypeError) return [{ text: texts.common.away, place: '' }]
  return [{ text: error instanceof Error ? error.message : String(error), place: '' }]
}

function toProblemLine({
  details,
  diagnostics,
  code,
  expression,
}: OperationOutcomeIssue): ProblemLine {
  const text = details?.text ?? diagnostics ?? code ?? ''
  return { text, place: expression?.join(', ') ?? '' }
}
