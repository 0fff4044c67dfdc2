/** The page frame: title, buttons, views and content. */
import { Breadcrumbs, Group, Paper, Stack, Tabs, Text, Title } from '@mantine/core'
import { useDidUpdate, useDocumentTitle } from '@mantine/hooks'
import { useEffect, useRef } from 'react'
import { useLocation } from 'wouter'
import { texts } from '../texts/texts.ts'
import { TextLink } from './text.tsx'

interface Props {
  readonly title: string
  readonly hint?: React.ReactNode
  /** Pages above this one, outermost first. */
  readonly trail?: readonly { readonly label: string; readonly href: string }[]
  readonly actions?: React.ReactNode
  readonly children?: React.ReactNode
}

const product = document.body.dataset.product ?? ''

let isFirst = true

/** Moves the focus of the keyboard to the title of a new page. The first page keeps that of the browser. */
function useTitleFocus() {
  const title = useRef<HTMLHeadingElement>(null)
  useEffect(() => {
    const isTyping = document.activeElement?.matches('input, textarea, [contenteditable=true]')
    if (!isFirst && !isTyping) title.current?.focus({ preventScroll: true })
    isFirst = false
  }, [])
  return title
}

export function Page({ title, hint, trail, actions, children }: Props) {
  const heading = useTitleFocus()
  useDocumentTitle(`${title} – ${product}`)
  return (
    <Stack gap="md">
      <Group justify="space-between" align="flex-start">
        <div>
          {trail && (
            <Breadcrumbs component="nav" aria-label={texts.app.trail} fz="sm">
              {trail.map(({ label, href }) => (
                <TextLink key={href} href={href}>
                  {label}
                </TextLink>
              ))}
            </Breadcrumbs>
          )}
          <Title ref={heading} order={1} size="h2" id="title" tabIndex={-1}>
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
  const tabs = useRef<HTMLDivElement>(null)
  useDidUpdate(() => {
    // A link in a view is gone with it.
    if (document.activeElement !== document.body) return
    tabs.current?.querySelector<HTMLElement>('[aria-selected=true]')?.focus({ preventScroll: true })
  }, [open])
  return (
    <Tabs value={open} onChange={(name) => go(`${address}/${name}`)}>
      <Tabs.List mb="md" ref={tabs}>
        {names.map((name) => (
          <Tabs.Tab key={name} value={name}>
            {labels[name]}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      <Tabs.Panel key={open} value={open}>
        {children}
      </Tabs.Panel>
    </Tabs>
  )
}
