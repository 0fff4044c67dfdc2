/** The settings that administrators write, each with its meaning and default. */
import { NativeSelect, TextInput } from '@mantine/core'
import type { ProjectSetting } from '@medplum/fhirtypes'
import { Form } from '../../parts/form.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.project

type Name = keyof typeof words.settings

/** The values that each may have; a setting that is not listed is free text. */
const CHOICES: Readonly<Partial<Record<Name, readonly string[]>>> = {
  validateTerminology: ['off'],
  validateQuestionnaireResponse: ['refuse'],
  fullTextSearch: ['true', 'false'],
  preCommitSubscriptionsEnabled: ['true', 'false'],
  BOT_INPUT_ARCHIVE: ['true', 'false'],
  autoDownloadEnabled: ['true', 'false'],
}
// The file of texts has no other names.
const NAMES = Object.keys(words.settings) as Name[]

interface Props {
  readonly address: string
  readonly settings: readonly ProjectSetting[]
}

export function Settings({ address, settings }: Props) {
  const others = settings.filter(({ name }) => !NAMES.some((known) => known === name))
  const saved = Object.fromEntries(NAMES.map((name) => [name, textOf(settings, name)]))
  return (
    <Form
      name="project-settings"
      saved={saved}
      send={(values) => medplum.post(`${address}/settings`, [...others, ...given(values)])}
      done={texts.common.saved}
    >
      {({ text }) =>
        NAMES.map((name) => {
          const { meaning, default: usual } = words.settings[name]
          const choices = CHOICES[name]
          const common = { label: name, description: meaning, ...text(name) }
          return choices ? (
            <NativeSelect
              key={name}
              {...common}
              data={[{ value: '', label: `${words.default}: ${usual}` }, ...choices]}
            />
          ) : (
            <TextInput key={name} {...common} placeholder={usual} />
          )
        })
      }
    </Form>
  )
}

function textOf(settings: readonly ProjectSetting[], wanted: string): string {
  const found = settings.find(({ name }) => name === wanted)
  return String(found?.valueString ?? found?.valueBoolean ?? '')
}

function given(values: Readonly<Record<string, string>>): ProjectSetting[] {
  return Object.entries(values).flatMap(([name, value]): ProjectSetting[] => {
    if (value.trim() === '') return []
    const isFlag = value === 'true' || value === 'false'
    return [isFlag ? { name, valueBoolean: value === 'true' } : { name, valueString: value }]
  })
}
