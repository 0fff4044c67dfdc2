/** The page frame: title, buttons, views and content. */
import { Anchor, Breadcrumbs, Group, Paper, Stack, Tabs, Text, Title } from '@mantine/core'
import { useDocumentTitle } from '@mantine/hooks'
import { Link, useLocation } from 'wouter'
import { texts } from '../texts/texts.ts'

interface Props {
  readonly title: string
  readonly hint?: React.ReactNode
  /** Pages above this one, outermost first. */
  readonly trail?: readonly { readonly label: string; readonly href: string }[]
  readonly actions?: React.ReactNode
  readonly children?: React.ReactNode
}

const product = document.body.dataset.product ?? ''

export function Page({ title, hint, trail, actions, children }: Props) {
  useDocumentTitle(`${title} – ${product}`)
  return (
    <Stack gap="md">
      <Group justify="space-between" align="flex-start">
        <div>
          {trail && (
            <Breadcrumbs component="nav" aria-label={texts.app.trail} fz="sm">
              {trail.map(({ label, href }) => (
                <Anchor key={href} component={Link} href={href} size="sm">
                  {label}
                </Anchor>
              ))}
            </Breadcrumbs>
          )}
          <Title order={1} size="h2" id="title" tabIndex={-1}>
            {title}
          </Title>
          {hint && (
            <Text c="dimmed" size="sm" component="div">
              {hint}
            </Text>
          )}
        </div>
        {actions && <Group gap="xs">{actions}</Group>}
      </Group>
      {children}
    </Stack>
  )
}

interface SectionProps {
  readonly title: string
  readonly children: React.ReactNode
}

export function Section({ title, children }: SectionProps) {
  return (
    <Paper withBorder p="md">
      <Title mb="sm">{title}</Title>
      {children}
    </Paper>
  )
}

interface ViewsProps<N extends string> {
  readonly names: readonly N[]
  readonly labels: Readonly<Record<N, string>>
  readonly open: N
  /** The view's name is appended. */
  readonly address: string
  readonly children: React.ReactNode
}

export function Views<N extends string>({ names, labels, open, address, children }: ViewsProps<N>) {
  const [, go] = useLocation()
  return (
    <Tabs value={open} onChange={(name) => go(`${address}/${name}`)}>
      <Tabs.List mb="md">
        {names.map((name) => (
          <Tabs.Tab key={name} value={name}>
            {labels[name]}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      <Tabs.Panel value={open}>{children}</Tabs.Panel>
    </Tabs>
  )
}
