/** PostgreSQL's plan of a search. */
import { Box, Code, Group, Progress, ScrollArea, Spoiler, Stack, Text } from '@mantine/core'
import type { Bundle, OperationOutcome } from '@medplum/fhirtypes'
import { useGet } from '../../client/api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.resources

interface PlanProps {
  readonly type: string
  readonly query: URLSearchParams
}

/** PostgreSQL's query plan as a tree, with a bar for each step's share of the time. */
export function Plan({ type, query }: PlanProps) {
  const explained = useGet<Bundle<OperationOutcome>>(`fhir/R4/${type}?${query}&_explain=true`)
  return (
    <Loaded query={explained}>
      {({ entry = [] }) =>
        entry
          .flatMap(({ resource }) => resource?.issue ?? [])
          .map(({ details, diagnostics = '' }) => (
            <Steps key={diagnostics} title={details?.text ?? ''} text={diagnostics} />
          ))
      }
    </Loaded>
  )
}

interface StepsProps {
  readonly title: string
  readonly text: string
}

function Steps({ title, text }: StepsProps) {
  const steps = parsePlanSteps(text)
  const most = Math.max(...steps.map(({ ms }) => ms), 0.001)
  return (
    <Stack gap={4}>
      <Text fw={600}>{title}</Text>
      <ScrollArea tabIndex={0} aria-label={words.plan}>
        {steps.map(({ line, depth, name, ms, rows }) => (
          <Group key={line} wrap="nowrap" gap="sm">
            <Box w={120}>
              <Progress value={(100 * ms) / most} aria-label={`${ms} ms`} />
            </Box>
            <Text size="xs" w={150} ta="right">
              {fill(words.step, { ms, rows })}
            </Text>
            <Text size="sm" pl={depth * 12} style={{ whiteSpace: 'nowrap' }}>
              {name}
            </Text>
          </Group>
        ))}
      </ScrollArea>
      <Spoiler maxHeight={0} showLabel={words.planText} hideLabel={words.planHide}>
        <Code block>{text}</Code>
      </Spoiler>
    </Stack>
  )
}

interface Step {
  readonly line: number
  readonly depth: number
  readonly name: string
  readonly ms: number
  readonly rows: number
}

function parsePlanSteps(text: string): readonly Step[] {
  const lines = text.split('\n').flatMap((step, line) => {
    const [, space = '', name, last, rows, loops] =
      /^( *)(?:->\s+)?(\S.*?)\s+\(cost=.*?\(actual time=[\d.]+\.\.([\d.]+) rows=([\d.]+) loops=(\d+)\)/.exec(
        step,
      ) ?? []
    if (name === undefined) return []
    const times = Number(loops)
    const ms = Math.round(Number(last) * times * 1000) / 1000
    return [{ line, depth: space.length / 6, name, ms, rows: Math.round(Number(rows) * times) }]
  })
  return lines
}
